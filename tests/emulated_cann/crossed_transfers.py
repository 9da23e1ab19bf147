"""Run under msrun on two emulated NPUs: both ranks send to each other first, by ``send``, ``isend`` or ``batch``."""

import sys


def exchange(how, mine, theirs, peer):
    """Send ``mine`` and receive ``theirs``; the order of the calls is the same on both ranks."""
    from mindspore.mint import distributed

    if how == "send":
        distributed.send(mine, peer)
        distributed.recv(theirs, peer)
        return
    if how == "isend":
        handles = [distributed.isend(mine, peer), distributed.irecv(theirs, peer)]
    else:
        sending = distributed.P2POp("isend", mine, peer)
        receiving = distributed.P2POp("irecv", theirs, peer)
        handles = distributed.batch_isend_irecv([sending, receiving])
    for handle in handles:
        handle.wait()


def main():
    import mindspore as ms
    import numpy as np
    from mindspore import Tensor
    from mindspore.communication import get_rank, init
    from msrun_launch import report

    ms.set_device("Ascend")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    init()
    rank = get_rank()
    mine, theirs = Tensor(np.full(4, rank + 1, np.float32)), Tensor(np.zeros(4, np.float32))
    report("started", True)
    exchange(sys.argv[1], mine, theirs, 1 - rank)
    # Calls and waits return at once on Ascend, also on a stream that hangs: only reading the data tells.
    report("received", theirs.asnumpy().tolist())


if __name__ == "__main__":
    main()
