"""A job's life: intake, planning, dispatch, leases, execution, finalizing, reconciling."""
