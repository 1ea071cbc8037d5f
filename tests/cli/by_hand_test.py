#!/usr/bin/env python3
"""What people say by hand: --pin, --stages, inspect --modules, links and presets in cluster files.

Standard library only. Skipped (77) where the program is not built.
"""

import json
import re
import sys
import unittest

from command import BINARY, FIXTURES, Command

GPT2 = str(FIXTURES / "gpt2.pt2")  # transformer.h.0 and transformer.h.1
BRANCHES = str(FIXTURES / "three_branch.pt2")  # image.blocks.0, text.blocks.0, …
TWO = "2xV100-16GB"

LINKED = """\
kind fast preset=A100-80GB speed=1.5
group network 25Gb latency=10us
group host0 in network 16GB latency=5us
group host1 in network 16GB latency=5us
device gpu:0 fast in host0
device gpu:1 L4 in host0
device gpu:2 T4 in host1
link gpu:0 gpu:1 200GB latency=2us
link host0 host1 1Gb
"""


class ByHand(Command):
    def planned(self, *arguments):
        return json.loads(self.espalier("plan", *arguments, "--json").stdout)

    def devices(self, planned):
        return [stage["devices"] for stage in planned["stages"]]

    # --stages

    def test_a_split_by_hand_becomes_a_plan_like_others(self):
        planned = self.planned(GPT2, "--cluster", TWO, "--stages", "h.0,h.1")
        self.assertEqual([stage["name"] for stage in planned["stages"]], ["h.0", "h.1"])
        self.assertEqual(planned["planner"], "stages")
        simulated = json.loads(self.espalier("simulate", "plan.json", "--json").stdout)
        self.assertEqual(simulated["iteration_ns"], planned["iteration_ns"])
        self.espalier("plan", GPT2, "--cluster", TWO, "-o", "other.json")
        self.espalier("diff", "plan.json", "other.json")

    def test_what_no_item_names_is_told(self):
        notes = self.planned(GPT2, "--cluster", TWO, "--stages", "h.0,h.1")["notes"]
        self.assertTrue(any(re.match(r"stages: \d+ operators that no item names: \d+ with h.0, \d+ with h.1", note)
                            for note in notes), notes)  # fmt: skip

    def test_devices_and_replicas_may_be_named(self):
        planned = self.planned(GPT2, "--cluster", "4xT4", "--stages", "wte+wpe+h.0=gpu:3,h.1=gpu:0+gpu:2")
        self.assertEqual(self.devices(planned), [["gpu:3"], ["gpu:0", "gpu:2"]])
        planned = self.planned(GPT2, "--cluster", TWO, "--stages", "h.0,h.1", "--pin", "h.0=gpu:1")
        self.assertEqual(self.devices(planned), [["gpu:1"], ["gpu:0"]])

    def test_compare_shows_the_split_beside_the_planners(self):
        done = self.espalier("compare", GPT2, "--cluster", TWO, "--stages", "h.0,h.1", "-p", "single", "--json")
        rows = json.loads(done.stdout)["rows"]
        self.assertEqual([row["planner"] for row in rows], ["stages", "single"])
        self.assertEqual(rows[0]["iteration_ns"], self.planned(GPT2, "--cluster", TWO, "--stages", "h.0,h.1")["iteration_ns"])  # fmt: skip

    def test_a_wrong_split_is_one_line(self):
        def refused(stages, says, *more):
            self.refused("plan", GPT2, "--cluster", TWO, "--stages", stages, *more, says=says)

        refused("h.0,h.1,hd", ["--stages 'hd' matches no operator or module", "did you mean"])
        refused("h.0-1,h.1", ["of transformer.h.1", "stands in 'h.0-1' and in 'h.1'"])
        refused("wte+h.1,h.0", ["'wte+h.1' and 'h.0' read from each other: a path leaves 'wte+h.1' at"])
        refused("h.0=gpu:5,h.1", ["--stages 'h.0=gpu:5': no device 'gpu:5'"])
        refused("h.0=gpu:0,h.1", ["--pin 'h.0=gpu:1' (operator '", "wants it elsewhere"], "--pin", "h.0=gpu:1")
        refused("h.0,", "an item is empty")
        refused("h.0,h.1", ["--planner pipedream", "--stages"], "--planner", "pipedream")
        self.planned(GPT2, "--cluster", TWO)
        refused("h.0,h.1", "--stages and --start", "--start", "plan.json", "-o", "again.json")
        self.refused("plan", BRANCHES, "--cluster", TWO, "--stages", "blocks.0,head",
                     says=["'blocks.0' could be 'image.blocks.0' or '", "'*.blocks.0' means all of them"])  # fmt: skip

    # --pin

    def test_a_pin_may_hold_ranges(self):
        planned = self.planned(GPT2, "--cluster", TWO, "--pin", "h.[0-1].*=gpu:1", "--planner", "single")
        self.assertEqual(self.devices(planned), [["gpu:1"]])

    def test_a_wrong_pin_is_one_line(self):
        def refused(says, *pins):
            self.refused("plan", GPT2, "--cluster", TWO, *sum((["--pin", pin] for pin in pins), []), says=says)

        refused(["--pin 'h.7' matches no operator or module", "did you mean 'transformer.h."], "h.7=gpu:0")
        refused(["--pin 'h.1': operator '", "is pinned to another device by --pin 'h.*'"], "h.*=gpu:0", "h.1=gpu:1")
        refused("'[1-0]': 1 is above 0", "h.[1-0]=gpu:0")

    def test_pins_that_no_one_stage_can_hold_are_warned_about(self):
        done = self.espalier("plan", GPT2, "--cluster", TWO, "--pin", "wte=gpu:0", "--pin", "h.0=gpu:1", "--pin",
                             "h.1=gpu:0", "--planner", "single", code=3)  # fmt: skip
        self.assertIn("--pin: a path leaves gpu:0 ('", done.stderr)
        self.assertIn("no one stage can hold what is pinned to gpu:0", done.stderr)

    # inspect --modules

    def test_modules_are_shown_by_names_that_stages_and_pins_take(self):
        done = self.espalier("inspect", GPT2, "--modules")
        self.assertRegex(done.stdout, r"(?m)^transformer\.h\.0-1 ")
        for line in done.stdout.splitlines():
            if line.startswith("transformer."):
                self.planned(GPT2, "--cluster", TWO, "--stages", line.split()[0])

    def test_modules_down_to_a_depth_and_as_json(self):
        depth = self.espalier("inspect", GPT2, "--modules", 1).stdout
        self.assertRegex(depth, r"(?m)^transformer ")
        self.assertNotIn("transformer.h", depth)
        tree = json.loads(self.espalier("inspect", GPT2, "--modules", "9", "--json").stdout)
        by_name = {row["name"]: row for row in tree["modules"]}
        self.assertIn("transformer.h.1.mlp.c_fc", by_name)
        inside = [row for name, row in by_name.items() if re.fullmatch(r"transformer\.h\.[0-9]+", name)]
        self.assertEqual(len(inside), 2)
        self.assertEqual(by_name["transformer.h"]["operators"], sum(row["operators"] for row in inside))
        self.assertEqual(by_name["transformer.h"]["time_ns"], sum(row["time_ns"] for row in inside))
        self.refused("inspect", GPT2, "--modules", "deep", says="--modules deep: expected a number of levels")

    def test_a_profile_without_modules_lists_its_operators(self):
        self.write("flat.txt", 'batch 1..4\nx = input() : f32[b]\n"/stem/Conv" = f(x) : f32[b]\n'
                               '"/stem/Relu" = f("/stem/Conv") : f32[b]\nn7 = f("/stem/Relu") : f32[]\n')  # fmt: skip
        done = self.espalier("inspect", "flat.txt", "--modules")
        self.assertRegex(done.stdout, r"(?m)^/stem +2 ")
        self.assertIn("1 operator without a module: n7", done.stdout)

    # Cluster files

    def test_links_and_presets_in_a_cluster_file_are_planned_with(self):
        self.write("linked.txt", LINKED)
        self.planned(GPT2, "--cluster", "linked.txt", "--stages", "h.0=gpu:0,h.1=gpu:1")
        cluster = json.loads((self.folder / "plan.json").read_text())["cluster"]
        self.assertEqual([(link["from"], link["to"], link["bytes_per_second"]) for link in cluster["links"]],
                         [("gpu:0", "gpu:1", 200_000_000_000), ("host0", "host1", 125_000_000)])  # fmt: skip
        self.espalier("simulate", "plan.json")
        self.write("cluster.json", json.dumps(cluster))
        near = self.planned(GPT2, "--cluster", "cluster.json", "--stages", "h.0=gpu:0,h.1=gpu:1")
        far = self.planned(GPT2, "--cluster", "cluster.json", "--stages", "h.0=gpu:0,h.1=gpu:2")
        self.assertLess(near["iteration_ns"], far["iteration_ns"])

    def test_a_wrong_link_names_the_line(self):
        self.write("linked.txt", LINKED + "link gpu:0 host0 1GB\n")
        self.refused("plan", GPT2, "--cluster", "linked.txt", says="one end is in the other")
        self.write("linked.txt", LINKED + "link gpu:0 gpu:7 1GB\n")
        self.refused("plan", GPT2, "--cluster", "linked.txt", says=["linked.txt: line 10", "'gpu:7'"])


if __name__ == "__main__":
    if not BINARY:
        sys.exit(77)
    unittest.main()
