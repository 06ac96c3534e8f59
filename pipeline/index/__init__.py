"""Indexes over vector files: what is asked of them, building, proving, searching.

``manifest`` is plain values and may be imported anywhere. ``scores`` and ``recall`` need numpy only. ``build`` and
``search`` import faiss, so only a child process imports them, and never one that holds mlx or torch.
"""
