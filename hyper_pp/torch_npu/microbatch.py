"""Torch's own chunk specs and their functions, under the module's name in ``torch.distributed.pipelining``."""

from torch.distributed.pipelining.microbatch import TensorChunkSpec, merge_chunks, split_args_kwargs_into_chunks

__all__ = ["TensorChunkSpec", "merge_chunks", "split_args_kwargs_into_chunks"]
