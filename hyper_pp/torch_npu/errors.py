"""Errors of the types that code written for ``torch.distributed.pipelining`` catches."""

from torch.distributed.pipelining._utils import PipeliningMetadataError

from hyper_pp.errors import PipelineError


class MetadataError(PipelineError, PipeliningMetadataError, ValueError):
    """What enters or leaves a stage has another shape or element type than declared or than before."""
