#!/usr/bin/env python3
# Sanitized builds leave this out: it starts the program often, and tests of modules have what it runs.
"""Families of task graphs, traversal orders of placers, and the study of both, as a user meets them.

Standard library only. Skipped (77) where the program is not built.
"""

import json
import sys
import unittest

from command import BINARY, FIXTURES, Command

FAMILIES = ["cifar10", "ptb", "nmt", "cholesky", "lu", "qr", "giph", "layered", "fork-join", "embedding-tables"]
ORDERS = ["alpha", "topo_lifo", "topo_generations", "reversed_topo", "dfs_preorder", "dfs_postorder", "bfs", "lexico_topo", "random",
          "random_per_episode", "in_turn"]
QUICK = ["--seeds", "2", "--episodes", "1"]


class Families(Command):
    def written(self, name, *arguments):
        self.espalier("zoo", name, *arguments, "-o", "g.json", "--costs", "costs.json", "--cluster", "cluster.json")
        return ["g.json", "--costs", "costs.json", "-c", "cluster.json"]

    def test_every_family_is_written_and_placed(self):
        for name in FAMILIES:
            files = self.written(name)
            done = json.loads(self.espalier("plan", *files, "--planner", "m-topo", "-o", "plan.json", "--json").stdout)
            self.assertEqual(done["status"], "feasible", name)

    def test_the_list_has_families_with_their_settings(self):
        told = json.loads(self.espalier("zoo", "--list", "--json").stdout)
        self.assertEqual([row["family"] for row in told["families"]], FAMILIES)
        one = json.loads(self.espalier("zoo", "qr", "--list", "--json").stdout)
        self.assertEqual([row["family"] for row in one["families"]], ["qr"])
        self.assertIn("--tiles", [row["setting"] for row in one["settings"]])

    def test_a_seed_is_a_graph(self):
        self.written("cifar10", "--seed", "7")
        first = (self.folder / "g.json").read_bytes()
        self.written("cifar10", "--seed", "7")
        self.assertEqual(first, (self.folder / "g.json").read_bytes())
        self.written("cifar10", "--seed", "8")
        self.assertNotEqual(first, (self.folder / "g.json").read_bytes())

    def test_what_cannot_be_is_refused(self):
        self.refused("zoo", "cholesky", "--tiles", "0", "-o", "g.json", says="expected 1 to 40")
        self.refused("zoo", "cholesky", "--layers", "3", "-o", "g.json", says="cholesky has no setting 'layers'")
        self.refused("zoo", "cholesky", "--training", "-o", "g.json", says="--training")
        self.refused("zoo", "gnmt", "--layers", "2", "-o", "g.json", "--costs", "c.json", says="--costs")
        self.refused("zoo", "choleski", "-o", "g.json", says="did you mean 'cholesky'?")


class TaskFiles(Command):
    def test_graphs_of_others_are_looked_at_and_placed(self):
        for name in ("diamond.stg", "diamond_workflow.json"):
            self.espalier("inspect", FIXTURES / name, "-c", "2xA100-80GB")
            done = json.loads(self.espalier("plan", FIXTURES / name, "-c", "2xA100-80GB", "-b", "1", "-p", "heft", "-o", "p.json",
                                            "--json").stdout)
            self.assertEqual(done["status"], "feasible", name)
        self.refused("inspect", self.write("x.stg", "2\n0 0 0\n1 3 1 7\n"), says="there is no task 7")


class Orders(Command):
    def test_a_placer_takes_every_order(self):
        self.espalier("zoo", "fork-join", "-o", "g.json", "--costs", "c.json", "--cluster", "k.json")
        files = ["g.json", "--costs", "c.json", "-c", "k.json"]
        found = set()
        for order in ORDERS:
            for planner in ("round-robin", "m-topo", "list", "accept", "descent", "uniform-walk"):
                done = json.loads(self.espalier("plan", *files, "-p", planner, "--order", order, "--budget", "500", "-o", "p.json",
                                                "--json").stdout)
                self.assertEqual(done["status"], "feasible", (planner, order))
                found.add((planner, done["iteration_ns"]))
        self.assertGreater(sum(planner == "list" for planner, _ in found), 1, "the order changes what is found")
        table = json.loads(self.espalier("compare", *files, "-p", "list,m-topo", "--order", "alpha", "--json").stdout)
        self.assertEqual([row["planner"] for row in table["rows"]], ["list", "m-topo"])
        self.refused("plan", *files, "-p", "list", "--order", "alfa", says="did you mean 'alpha'?")
        self.refused("compare", *files, "--order", "alfa", says="did you mean 'alpha'?")

    def test_a_study_of_a_family(self):
        told = json.loads(self.espalier("orders", "--family", "layered", "--members", "5", *QUICK, "--json").stdout)
        self.assertEqual([of["placer"] for of in told["placers"]], ["uniform-walk", "accept", "list", "descent"])
        for of in told["placers"]:
            self.assertEqual(sorted(row["order"] for row in of["orders"]), sorted(ORDERS))
            self.assertTrue(of["blocks_are_graphs"])
            self.assertEqual(of["blocks"], 5)
            self.assertEqual(len(of["advice"]), 5)
            ranks = [row["rank"] for row in of["orders"]]
            self.assertEqual(ranks, sorted(ranks))
            self.assertAlmostEqual(sum(ranks), len(ORDERS) * (len(ORDERS) + 1) / 2)

    def test_a_study_of_files_with_a_picture(self):
        self.espalier("zoo", "fork-join", "--sections", "2", "-o", "g.json", "--costs", "c.json", "--cluster", "k.json")
        files = ["g.json", "--costs", "c.json", "-c", "k.json"]
        one = self.espalier("orders", *files, *QUICK, "--placer", "list,accept", "--orders", "alpha,bfs", "--svg", "o.svg").stdout
        self.assertIn("advice for", one)
        self.assertIn("holds for these graphs", one)
        self.assertTrue((self.folder / "o.svg").read_text().startswith("<svg"))
        self.assertEqual(one, self.espalier("orders", *files, *QUICK, "--placer", "list,accept", "--orders", "alpha,bfs", "--svg",
                                            "o.svg", "-j", "3").stdout)

    def test_wrong_input_is_refused(self):
        self.refused("orders", says="expected graphs, or a family")
        self.refused("orders", "--family", "cifar", says="there is no family 'cifar'")
        self.refused("orders", "--family", "qr", "--orders", "alpha", says="at least two")
        self.refused("orders", "--family", "qr", "--placer", "lisp", says="did you mean 'list'?")
        self.refused("orders", "gone.json", says="gone.json")


if __name__ == "__main__":
    if not BINARY:
        print("skipped: ESPALIER_BINARY is not set")
        sys.exit(77)
    unittest.main()
