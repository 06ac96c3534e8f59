"""What botocore's errors are called in this project, and the way out of each; the one seam where they come in.

Texts hold the server's error code and what we know ourselves. A server's own words are left out: they may quote a key.
"""

from __future__ import annotations

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ReadTimeoutError,
    SSLError,
    TokenRetrievalError,
)
from botocore.exceptions import ConnectionError as NoConnection
from urllib3.exceptions import HTTPError

from pipeline.errors import ArtifactCorrupt, ArtifactMissing, ConfigError, PipelineError, StoreFull, StoreUnavailable

#: What a client's call, or a body's read, may raise.
ERRORS = (BotoCoreError, ClientError, HTTPError, OSError)

#: After these the rest of a body may be had by asking again.
BROKEN_OFF = (HTTPClientError, NoConnection, IncompleteReadError, HTTPError, OSError)

_NO_BUCKET = frozenset({"NoSuchBucket", "InvalidBucketName"})
_FULL = frozenset(
    {"InsufficientStorage", "QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "507"}
)
_CLOCK = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_REGION = frozenset(
    {
        "PermanentRedirect",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "Redirect",
        "301",
        "307",
    }
)
_KEYS = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "ExpiredTokenException", "InvalidToken"}
    | {"InvalidClientTokenId", "UnrecognizedClientException", "TokenRefreshRequired"}
)
_DENIED = frozenset({"AccessDenied", "AllAccessDisabled", "AccountProblem", "403", "Forbidden"})

_KEYS_HINT = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; see docs/operations.md"


def code_of(error: BaseException) -> str:
    """The server's error code; "" where the server said nothing."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def translated(error: BaseException, *, url: str, uri: str, endpoint: str, is_known: bool) -> PipelineError:
    """Our error for one of theirs.

    What only a change of the settings can mend is a ConfigError until the bucket has answered once (``is_known``).
    From then on it is StoreUnavailable: the settings were right, so somebody is changing things under a running worker,
    and its work shall wait and not fail.
    """
    wrong = StoreUnavailable if is_known else ConfigError
    if isinstance(error, ClientError):
        return _answered(error, wrong, url=url, uri=uri, endpoint=endpoint)
    if isinstance(error, (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, TokenRetrievalError)):
        return wrong(f"no complete credentials were found for {url}", hint=_KEYS_HINT)
    if isinstance(error, SSLError):
        return StoreUnavailable(
            f"{url}: {endpoint} cannot prove who it is (TLS)", hint="AWS_CA_BUNDLE names a file of authorities to trust"
        )
    if isinstance(error, (ConnectTimeoutError, ReadTimeoutError)):
        return StoreUnavailable(f"{url}: {endpoint} was silent for too long", hint="store_timeout_s is the limit")
    if isinstance(error, BROKEN_OFF):
        return StoreUnavailable(f"{url}: {endpoint} cannot be reached ({type(error).__name__})")
    return wrong(f"{url} cannot be used: {type(error).__name__}", hint="check store_url and the AWS_* variables")


def _answered(error: ClientError, wrong: type[PipelineError], *, url: str, uri: str, endpoint: str) -> PipelineError:
    code = code_of(error)
    status = str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
    if code == "NoSuchKey":  # a bare 404 may come from anything that stands between us and the store
        return ArtifactMissing(f"{uri} is not in {url}")
    if code in _NO_BUCKET:
        return wrong(f"there is no bucket for {url} at {endpoint}", hint="make the bucket, or correct store_url")
    if code in ("PreconditionFailed", "412"):
        return ArtifactCorrupt(f"{uri} was replaced while it was read")
    if code in _FULL or status == "507":
        return StoreFull(f"{url} has no space left ({code})", hint="free some space; the work goes on by itself")
    if code in _KEYS:
        return wrong(f"{endpoint} refuses the credentials for {url} ({code})", hint=_KEYS_HINT)
    if code in _CLOCK:
        return StoreUnavailable(f"{endpoint} says that this host's clock is wrong ({code})", hint="set the clock")
    if code in _REGION:
        return wrong(f"{url} is in another region ({code})", hint="set AWS_REGION to the bucket's region")
    if code in _DENIED:
        return wrong(
            f"{endpoint} denies access to {uri or 'the bucket'} in {url} ({code})",
            hint="the key needs to read, write, delete and list in this bucket; see docs/operations.md",
        )
    return StoreUnavailable(f"{url}: {endpoint} answers {code or 'nothing we know'} (HTTP {status})")
