"""Second, slow and separately written versions of what the core claims, and random plans to try both on.

Nothing here uses hyper_pp's own rules (dependencies, rendezvous, simulation): actions are read from their text form and
the rules are those of a training step.
"""

import re
from collections import defaultdict
from graphlib import TopologicalSorter

from hyper_pp import Action, Op, PipelineShape, Plan, Transpose

COMPUTE = ("F", "B", "I", "W", "TF", "TB")
COLLECTIVE = ("BCAST_T", "REDUCE_T")


def parts(action):
    stage, op, m = re.fullmatch(r"(\d+)([A-Z_]+?)(\d*)", str(action)).groups()
    return int(stage), op, int(m) if m else None


def rank_of_stage(plan, stage):
    p = plan.shape.num_ranks
    return 2 * p - 1 - stage if plan.shape.placement == "v" and stage >= p else stage % p


# ---- simulation: the longest path, by going round until nothing changes ----


def slow_step_time(plan, costs):
    """Return the step time as the fixed point of 'start when the rank is free and all inputs are there'.

    None if there is none because orders wait for each other; to see that, costs must be above 0.
    """
    rank_of, orders = {}, []
    for rank, order in enumerate(plan.orders):
        orders.append([parts(action) for action in order if parts(action)[1] in COMPUTE + COLLECTIVE])
        for item in orders[-1]:
            if item[1] in COMPUTE:
                rank_of[item] = rank
    start = dict.fromkeys(rank_of, 0.0)
    duration = {item: slow_duration(plan, costs, item, rank_of) for item in rank_of}
    collective_start = dict.fromkeys(COLLECTIVE, 0.0)
    present = {op for order in orders for _, op, _ in order}
    changed = True
    rounds = 0
    while changed:
        changed = False
        rounds += 1
        if rounds > len(rank_of) + 4:
            return None  # the orders wait for each other, so times grow for ever
        for rank, order in enumerate(orders):
            free = 0.0
            for item in order:
                if item[1] in COLLECTIVE:
                    if free > collective_start[item[1]]:
                        collective_start[item[1]] = free
                        changed = True
                    continue
                earliest = free
                for other in inputs_of(plan, item, rank_of):
                    latency = costs["comm"] if rank_of[other] != rank else 0.0
                    earliest = max(earliest, start[other] + duration[other] + latency)
                if item[1] == "TF" and "BCAST_T" in present:
                    earliest = max(earliest, collective_start["BCAST_T"] + costs["collective"])
                if earliest > start[item]:
                    start[item] = earliest
                    changed = True
                free = start[item] + duration[item]
    ends = [start[item] + duration[item] for item in rank_of]
    return max(ends + [collective_start[op] + costs["collective"] for op in COLLECTIVE if op in present])


def inputs_of(plan, item, known):
    stage, op, m = item
    wanted = []
    if op == "F":
        wanted = [(stage - 1, "F", m)] if stage else [(0, "TF", m)]
    elif op in ("B", "I"):
        wanted = [(stage, "F", m), (stage + 1, "B", m), (stage + 1, "I", m)]
    elif op == "W":
        wanted = [(stage, "I", m)]
    elif op == "TB":
        wanted = [(0, "TF", m), (0, "B", m), (0, "I", m)]
    return [other for other in wanted if other in known]


def slow_duration(plan, costs, item, known):
    stage, op, m = item
    block = plan.transpose
    if op == "TF":
        return costs["TF"]
    if op == "TB":
        recompute = block.backward == "central" or block.recompute
        return costs["TB"] + (costs["TF"] if recompute else 0)
    own = costs[op][stage] if isinstance(costs[op], tuple) else costs[op]
    if block is not None and stage == 0:
        if op == "F" and (0, "TF", m) not in known:
            own += costs["TF"]
        if op in ("B", "I") and not block.frozen and (0, "TB", m) not in known:
            own += costs["TB"]
    return own


# ---- communication: one total order, and a run with blocking transfers ----


def partner_of(item):
    stage, op, m = item
    kind, _, what = op.partition("_")
    step = {"F": 1, "B": -1}.get(what, 0)
    return (stage + step, f"RECV_{what}", m) if kind == "SEND" else (stage - step, f"SEND_{what}", m)


def has_total_order(orders):
    """Tell whether all actions, each transfer's halves and each collective being one, fit into one sequence."""
    graph = defaultdict(set)
    for rank, order in enumerate(orders):
        previous = None
        for step, action in enumerate(order):
            item = parts(action)
            if item[1].startswith("RECV_"):
                item = partner_of(item)
            elif not item[1].startswith("SEND_") and item[1] not in COLLECTIVE:
                item = (rank, step)
            graph[item] |= {previous} if previous is not None else set()
            previous = item
    try:
        TopologicalSorter(graph).prepare()
    except ValueError:
        return False
    return True


def runs_with_blocking_transfers(orders):
    """Tell whether every rank gets to its end, doing one action at a time; partners must stand at a transfer."""
    rows = [[parts(action) for action in order] for order in orders]
    at = [0] * len(rows)
    while True:
        heads = [row[i] if i < len(row) else None for row, i in zip(rows, at)]
        if not any(heads):
            return True
        moved = False
        for rank, item in enumerate(heads):
            if item is None:
                continue
            if item[1] in COLLECTIVE:
                goes = all(head == item for head in heads)
            elif "SEND_" in item[1] or "RECV_" in item[1]:
                goes = any(head == partner_of(item) for other, head in enumerate(heads) if other != rank)
            else:
                goes = True
            if goes:
                at[rank] += 1
                moved = True
        if not moved:
            return False


# ---- random plans ----


def random_plan(rng, max_ranks=4, max_chunks=3, max_micro_batches=6, with_block=None):
    """Return a compute-only plan whose orders are one random sequence of everything there is to do, dealt out."""
    p = rng.randint(1, max_ranks)
    v = rng.randint(1, max_chunks)
    m_count = rng.randint(1, max_micro_batches)
    placement = rng.choice(("loop", "v")) if v == 2 else "loop"
    shape = PipelineShape(p, v, m_count, placement)
    block = None
    if rng.random() < 0.7 if with_block is None else with_block:
        backward = rng.choice(("owner", "central"))
        block = Transpose(
            tuple(rng.randrange(p) for _ in range(m_count)),
            frozen=rng.random() < 0.3,
            backward=backward,
            explicit_backward=backward == "central" and rng.random() < 0.5,
            recompute=backward == "owner" and rng.random() < 0.5,
        )
    plan = Plan("random", shape, ((),) * p, compute_only=True, transpose=block)
    needs, ranks = events_of(plan, rng)
    orders = [[] for _ in range(p)]
    left = {event: set(before) for event, before in needs.items()}
    behind = defaultdict(list)
    for event, before in needs.items():
        for other in before:
            behind[other].append(event)
    ready = [event for event, before in left.items() if not before]
    while ready:
        event = ready.pop(rng.randrange(len(ready)))
        for other in behind[event]:
            left[other].discard(event)
            if not left[other]:
                ready.append(other)
        stage, op, m = event
        for rank in ranks[event]:
            name = op if "SEND_" not in op or rank == ranks[event][0] else op.replace("SEND", "RECV")
            orders[rank].append(Action(stage, Op(name), m))
    return Plan("random", shape, tuple(map(tuple, orders)), compute_only=True, transpose=block)


def events_of(plan, rng):
    """Return what each event needs and the ranks it takes place on; a transfer of the block is one event."""
    shape, block = plan.shape, plan.transpose
    needs, ranks = {}, {}
    for m in range(shape.num_micro_batches):
        split = {s for s in range(shape.num_stages) if rng.random() < 0.3}
        for s in range(shape.num_stages):
            home = [rank_of_stage(plan, s)]
            needs[s, "F", m] = {(s - 1, "F", m)} if s else set()
            op = "I" if s in split else "B"
            behind = {(s + 1, "I" if s + 1 in split else "B", m)} if s + 1 < shape.num_stages else set()
            needs[s, op, m] = {(s, "F", m)} | behind
            ranks[s, "F", m] = ranks[s, op, m] = home
            if s in split:
                needs[s, "W", m], ranks[s, "W", m] = {(s, "I", m)}, home
        if block is not None:
            block_events(plan, rng, m, (0, "I" if 0 in split else "B", m), needs, ranks)
    if block is not None and not block.frozen and any(block.owners):
        everyone = list(range(shape.num_ranks))
        for before in needs.values():
            before.add((0, "BCAST_T", None))
        needs[0, "BCAST_T", None], ranks[0, "BCAST_T", None] = set(), everyone
        if block.backward == "owner":
            needs[0, "REDUCE_T", None] = {event for event in needs if event[1] == "TB"}
            ranks[0, "REDUCE_T", None] = everyone
    return needs, ranks


def block_events(plan, rng, m, backward, needs, ranks):
    block, owner = plan.transpose, plan.transpose.owners[m]
    inline = owner == 0 and m >= min(plan.shape.num_ranks, plan.shape.num_micro_batches)
    if inline and block.frozen and rng.random() < 0.5:
        return
    needs[0, "TF", m], ranks[0, "TF", m] = set(), [owner]
    needs[0, "F", m].add((0, "TF", m))

    def send(op, after, before=None):
        if owner != 0:
            way = [0, owner] if op == "SEND_TB" else [owner, 0]
            needs[0, op, m], ranks[0, op, m] = {after}, way
            if before:
                needs[before].add((0, op, m))

    send("SEND_TF", (0, "TF", m), (0, "F", m))
    if block.frozen:
        return
    if block.backward == "owner" or block.explicit_backward or not inline:
        needs[0, "TB", m] = {backward, (0, "TF", m)}
        ranks[0, "TB", m] = [owner if block.backward == "owner" else 0]
        send(*(("SEND_TB", backward) if block.backward == "owner" else ("SEND_TX", (0, "TF", m))), (0, "TB", m))


def random_costs(rng, num_stages):
    def cost():
        return rng.choice((0.0, 0.5, 1.0, 2.0, round(rng.uniform(0, 3), 3)))

    costs = {name: cost() for name in ("F", "B", "I", "W", "TF", "TB", "comm", "collective")}
    if rng.random() < 0.4:
        costs["F"] = tuple(cost() for _ in range(num_stages))
        costs["B"] = tuple(cost() for _ in range(num_stages))
    return costs
