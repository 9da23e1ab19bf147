"""A slow clock for lowered plans: each rank has a compute queue and a communication queue, both strictly in order."""

from hyper_pp.actions import COLLECTIVE_OPS, RECV_OPS, SEND_OPS, partner
from hyper_pp.costs import Prices
from hyper_pp.dependencies import Dependencies


def two_queue_time(plan, costs):
    """Return when the last queue is empty, where a message occupies the communication queues of both its ranks."""
    dependencies = Dependencies(plan.shape, plan.transpose, plan.orders)
    prices = Prices(costs, dependencies)
    transfer_ops = SEND_OPS | RECV_OPS | COLLECTIVE_OPS
    ranks = range(len(plan.orders))
    compute = [[action for action in order if action.op not in transfer_ops] for order in plan.orders]
    transfers = [[action for action in order if action.op in transfer_ops] for order in plan.orders]
    compute_free, transfer_free = [0.0 for _ in ranks], [0.0 for _ in ranks]
    ends = [{} for _ in ranks]

    def ready(rank, action):
        """When all that an action needs is there; None if that isn't known yet."""
        if action.op.value == "REDUCE_T" and compute[rank]:
            return None
        times = [ends[rank].get(need.local) for need in dependencies.needs(action)]
        if action.op.value == "REDUCE_T":
            times.append(compute_free[rank])
        return None if None in times else max(times, default=0.0)

    def transfer(rank):
        """Run the rank's next transfer if it stands first on all its ranks and what it carries is known."""
        action = transfers[rank][0]
        if action.op in COLLECTIVE_OPS:
            halves, duration = dict.fromkeys(ranks, action), costs.collective
        else:
            halves, duration = {rank: action, dependencies.rank_of(partner(action)): partner(action)}, costs.comm
        if any(not transfers[member] or transfers[member][0] != half for member, half in halves.items()):
            return False
        times = [0.0 if half.op in RECV_OPS else ready(member, half) for member, half in halves.items()]
        if None in times:
            return False
        end = max(*times, *(transfer_free[member] for member in halves)) + duration
        for member, half in halves.items():
            transfers[member].pop(0)
            transfer_free[member] = ends[member][half] = end
        return True

    moved = True
    while moved:
        moved = False
        for rank in ranks:
            while compute[rank] and (start := ready(rank, compute[rank][0])) is not None:
                action = compute[rank].pop(0)
                end = max(start, compute_free[rank]) + prices.duration(action)
                compute_free[rank] = ends[rank][action] = end
                moved = True
            while transfers[rank] and transfer(rank):
                moved = True
    assert not any(compute) and not any(transfers)
    return max(compute_free + transfer_free)
