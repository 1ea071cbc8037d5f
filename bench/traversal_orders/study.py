"""What run and fit share: the results, and regret. Standard library only."""

import collections
import csv
from pathlib import Path

HERE = Path(__file__).resolve().parent
FEATURES = ["units", "depth", "width", "critical", "degree", "branching", "communication", "slack"]
COLUMNS = ["set_up", "family", "member", "placer", "order", "seeds", "episodes", "looks", "mean", "deviation", "one", *FEATURES]
ORDERS = ["alpha", "topo_lifo", "topo_generations", "reversed_topo", "dfs_preorder", "dfs_postorder", "bfs", "lexico_topo", "random",
          "random_per_episode", "in_turn"]
FIXED = ORDERS[:-1]  # the study's ten, which the recommendation is measured against
PLACERS = ["uniform-walk", "accept", "list", "descent"]
SET_UPS = ["placeto", "links"]



class Case:
    """A graph in a set-up, with a placer; compared by identity."""

    def __init__(self, family, member, features, mean, deviation, one):
        self.family, self.member, self.features = family, member, features
        self.mean, self.deviation, self.one = mean, deviation, one  # by order, by order, of one device: ns
        least = max(1, min(mean.values()))
        self.regret = {o: m / least - 1 for o, m in mean.items()}  # how much longer than with the best order
        self.regret[None] = sum(self.regret.values()) / len(mean)  # of any order: the mean over all


def read(path):
    """By (set-up, placer): its cases, each with the mean step of every order."""
    rows = collections.defaultdict(dict)
    with open(path, newline="") as lines:
        for row in csv.DictReader(lines, fieldnames=COLUMNS):
            rows[row["set_up"], row["placer"], row["family"], row["member"]][row["order"]] = row
    cases = collections.defaultdict(list)
    for (set_up, placer, family, member), of in rows.items():
        if set(of) != set(ORDERS) or not all(row["mean"] for row in of.values()):
            continue
        first = of[ORDERS[0]]
        cases[set_up, placer].append(Case(family, member, {f: float(first[f]) for f in FEATURES}, {o: int(of[o]["mean"]) for o in ORDERS},
                                          {o: int(of[o]["deviation"]) for o in ORDERS}, int(first["one"])))
    return cases


def regret(case, order):
    return case.regret[order]


def mean_by_family(cases, value):
    """Each family counts the same."""
    of = collections.defaultdict(list)
    for case in cases:
        of[case.family].append(value(case))
    return sum(sum(v) / len(v) for v in of.values()) / len(of)
