#!/usr/bin/env python3
"""Placements on the command line: planned from a file by hand, simulated, compared, refused where they are wrong. How they
run: tests/run.

Standard library only. Skipped (77) where the program is not built.
"""

import json
import re
import sys
import unittest
import xml.etree.ElementTree

from command import BINARY, FIXTURES, Command

MODEL = str(FIXTURES / "three_branch.pt2")
CLUSTER = "2xV100-16GB"
RULES = '{"image*": "gpu:0", "*": "gpu:1"}'


class Placement(Command):
    def place(self, rules=RULES, name="plan.json", *arguments):
        self.write("rules.json", rules)
        return self.espalier("plan", MODEL, "--cluster", CLUSTER, "--batch", "16", "--placement", "rules.json",
                             "-o", name, *arguments)  # fmt: skip

    def test_a_placement_is_planned_simulated_and_drawn(self):
        said = self.place().stdout
        self.assertRegex(said, r"placement: \d+ operators in \d+ fragments, depth \d+, 1 micro-batch of 16, on 2 of 2")
        plan = json.loads((self.folder / "plan.json").read_text())
        self.assertIn("placement", plan)
        self.assertNotIn("stages", plan)
        said = self.espalier("simulate", "plan.json", "--gantt", "--svg", "p.svg", "--chrome", "p.json", "-o", "t.json")
        self.assertIn("placement: ", said.stdout)
        self.assertRegex(said.stdout, "no plan.* can take less than")
        for name in ("p.svg", "p.json", "t.json"):
            self.assertTrue((self.folder / name).exists(), name)
        planned = json.loads(self.place(RULES, "again.json", "--json").stdout)
        simulated = json.loads(self.espalier("simulate", "plan.json", "--json").stdout)
        self.assertEqual(planned["iteration_ns"], simulated["iteration_ns"])
        self.assertEqual(planned["memory"], simulated["memory"])
        self.assertEqual(planned["bounds"], simulated["bounds"])

    def test_operators_of_a_placement_are_drawn_one_by_one(self):
        self.place()
        said = self.espalier("simulate", "plan.json", "--operators", "o.json", "--operators-svg", "o.svg").stdout
        self.assertIn("operator by operator: ", said)
        events = json.loads((self.folder / "o.json").read_text())["traceEvents"]
        names = {event["args"]["name"] for event in events if event["name"] in ("process_name", "thread_name")}
        self.assertLessEqual({"gpu:0", "gpu:1", "operators"}, names)
        self.assertTrue(any(event["ph"] == "C" for event in events))
        self.assertTrue(any(event.get("cat") == "message" and event["args"]["bytes"] > 0 for event in events))
        self.assertTrue(any(event.get("cat") == "backward" and event["args"]["module"] for event in events))
        points = {}
        for event in events:
            if event.get("cat") == "flow":
                points.setdefault(event["id"], []).append(event)
        self.assertTrue(points)
        slices = {}
        for event in events:
            if event["ph"] == "X":
                slices.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        for arrow in points.values():
            self.assertIn("".join(point["ph"] for point in arrow), ("stf", "sf"))
            for point in arrow:
                within = slices[point["pid"], point["tid"]]
                self.assertTrue(any(start <= point["ts"] < end for start, end in within), point)
        svg = (self.folder / "o.svg").read_text()
        xml.etree.ElementTree.fromstring(svg)
        drawn, messages = re.search(r"Arrows: (\d+) of (\d+) messages", svg).groups()
        self.assertEqual(svg.count('<path class="a'), int(drawn))
        self.assertEqual(sum(event.get("cat") == "message" for event in events), int(messages))
        self.assertIn("</svg>", (self.folder / "o.svg").read_text())

    def test_the_gantt_of_a_placement_shows_its_operators(self):
        self.place()
        lines = self.espalier("simulate", "plan.json", "--gantt").stdout.splitlines()
        at = next(i for i, line in enumerate(lines) if line.startswith("operator by operator: "))
        lanes = [line for line in lines[at:] if line.endswith(" % busy")]
        self.assertEqual(len(lanes), 2)
        for lane in lanes:
            self.assertLessEqual(len(lane), 100)
            self.assertRegex(lane, "^gpu:[01]  [FfBbUu· ]+  +\\d")
        self.assertTrue(any(line.endswith(" % sends") for line in lines[at:]))
        self.assertRegex("\n".join(lines[at:]), "(?m)  peak .+iB$")
        # In several micro-batches, or where the model is gone: fragments, as before.
        self.place(RULES, "two.json", "--micro-batch", "8")
        said = self.espalier("simulate", "two.json", "--gantt").stdout
        self.assertNotIn("operator by operator", said)
        self.assertIn(" % busy", said)
        plan = (self.folder / "plan.json").read_text()
        (self.folder / "gone.json").write_text(plan.replace("three_branch.pt2", "gone.pt2"))
        done = self.espalier("simulate", "gone.json", "--gantt")
        self.assertIn(" % busy", done.stdout)
        self.assertIn("a picture of single operators needs the model", done.stderr)

    def test_operators_of_a_plan_of_stages_are_refused(self):
        self.espalier("plan", MODEL, "--cluster", CLUSTER, "--batch", "16", "-o", "stages.json")
        self.refused("simulate", "stages.json", "--operators", "o.json", says=["stages.json: has stages", "m-etf"])
        self.assertFalse((self.folder / "o.json").exists())

    def test_the_same_command_writes_the_same_bytes(self):
        self.place(RULES, "a.json")
        self.place(RULES, "b.json")
        self.assertEqual((self.folder / "a.json").read_bytes(), (self.folder / "b.json").read_bytes())

    def test_plans_of_both_sorts_are_compared_and_diffed(self):
        self.place(RULES, "a.json")
        self.place('{"*": "gpu:1"}', "b.json")
        self.espalier("plan", MODEL, "--cluster", CLUSTER, "--batch", "16", "-o", "stages.json")
        compare = ("compare", MODEL, "--cluster", CLUSTER, "--batch", "16", "--planner", "single")
        done = self.espalier(*compare, "--plan", "a.json", "--plan", "stages.json", "--json")
        rows = {row["planner"]: row for row in json.loads(done.stdout)["rows"]}
        self.assertEqual(list(rows), ["single", "a.json", "stages.json"])
        self.assertTrue(rows["a.json"]["placement"])
        self.assertFalse(rows["stages.json"]["placement"])
        simulated = json.loads(self.espalier("simulate", "a.json", "--json").stdout)
        self.assertEqual(rows["a.json"]["iteration_ns"], simulated["iteration_ns"])
        self.assertIn("gpu:1", self.espalier("diff", "a.json", "b.json").stdout)
        self.assertIn("plan: a placement in a, stages in b", self.espalier("diff", "a.json", "stages.json").stdout)
        self.assertIn("the plans are the same", self.espalier("diff", "a.json", "a.json").stdout)

    # Steps of a recurrent layer share weights: fragments add up gradients, and wait for each other without a tensor.
    def test_placements_of_a_training_graph_with_shared_weights_are_compared(self):
        self.espalier("zoo", "rnnlm", "--layers", "2", "--length", "8", "--training", "-o", "rnn.json")
        job = ("rnn.json", "--cluster", "4xP100-16GB", "--batch", "128")
        done = self.espalier("compare", *job, "-p", "m-etf", "-p", "heft", "-p", "expert", "--json")
        rows = json.loads(done.stdout)["rows"]
        self.assertEqual([row["planner"] for row in rows], ["m-etf", "heft", "expert"])
        planned = json.loads(self.espalier("plan", *job, "-p", "heft", "-o", "heft.json", "--json").stdout)
        self.assertEqual(rows[1]["iteration_ns"], planned["iteration_ns"])

    # A layer on each device: the second waits for one time step of the first, not for all.
    def test_fragments_follow_the_timeline_of_operators_wherever_the_placement_comes_from(self):
        self.espalier("zoo", "rnnlm", "--layers", "3", "--length", "12", "-o", "rnn.json")
        job = ("plan", "rnn.json", "--cluster", "3xP100-16GB", "--batch", "32", "--json")
        planned = json.loads(self.espalier(*job, "-p", "expert", "-o", "expert.json").stdout)
        plan = json.loads((self.folder / "expert.json").read_text())
        self.assertIn("level", plan["placement"]["devices"][0])
        again = json.loads(self.espalier(*job, "--placement", "expert.json", "-o", "again.json").stdout)
        self.assertEqual(again["iteration_ns"], planned["iteration_ns"])
        places = {}
        for entry in plan["placement"]["devices"]:
            places.setdefault(entry["device"], []).extend(entry["operators"])
        bare = {"format": "espalier.placement/1", "devices": [{"device": d, "operators": o} for d, o in places.items()]}
        self.write("bare.json", json.dumps(bare))
        found = json.loads(self.espalier(*job, "--placement", "bare.json", "-o", "found.json").stdout)
        self.assertEqual(found["iteration_ns"], planned["iteration_ns"])
        asked = json.loads(
            self.espalier(*job, "--placement", "bare.json", "--schedule", "1f1b", "-o", "asked.json").stdout
        )
        self.assertGreater(asked["iteration_ns"], planned["iteration_ns"])
        self.assertNotIn("level", json.loads((self.folder / "asked.json").read_text())["placement"]["devices"][0])

    def test_a_diff_says_which_work_moved(self):
        self.place(RULES, "a.json")
        self.place('{"numbers*": "gpu:0", "*": "gpu:1"}', "b.json")
        said = self.espalier("diff", "a.json", "b.json").stdout
        self.assertRegex(said, r"messages: .+ in a, .+ in b\n")
        self.assertRegex(said, r"moved: \d+ operators, \d+\.\d % of the work, .+ of parameters\n")
        self.assertRegex(said, r"(?m)^image +gpu:0 +gpu:1 +\d+ +\d+\.\d % +")
        self.assertRegex(said, r"(?m)^numbers +gpu:1 +gpu:0 +\d+ +\d+\.\d % +")
        self.assertRegex(said, r"(?m)^gpu:0 +.+ +.+ +[+-]")
        found = json.loads(self.espalier("diff", "a.json", "b.json", "--json").stdout)
        work = found["work"]
        self.assertAlmostEqual(sum(line["share"] for line in work["lines"]) + work["more"]["share"], work["share"])
        self.assertEqual(sum(line["operators"] for line in work["lines"]) + work["more"]["operators"], work["operators"])
        self.assertEqual(work["operators"], sum(move["count"] for move in found["moved"]))
        for name in "ab":
            simulated = json.loads(self.espalier("simulate", f"{name}.json", "--json").stdout)
            peaks = {row["device"]: row["peak_bytes"] for row in simulated["memory"]}
            self.assertEqual({row["device"]: row[f"{name}_bytes"] for row in found["memory"]}, peaks)

        # The same under other names: two equal devices.
        self.place('{"image*": "gpu:1", "*": "gpu:0"}', "c.json")
        said = self.espalier("diff", "a.json", "c.json").stdout
        self.assertIn("100.0 % of the work", said)
        self.assertIn("with devices renamed gpu:0 <-> gpu:1 only 0.0 % of the work moved", said)

        # Costs that are not there any more: all but the work.
        (self.folder / "costs.txt").write_text("cost nothing V100-16GB batch=16 f=1us i=0us w=0us origin=measured\n")
        self.place(RULES, "d.json", "--costs", "costs.txt")
        (self.folder / "costs.txt").unlink()
        done = self.espalier("diff", "d.json", "c.json")
        self.assertNotIn("of the work", done.stdout)
        self.assertRegex(done.stdout, r"(?m)^gpu:0 +.+ +.+ +[+-]")
        self.assertIn("share of the work that moved needs", done.stderr)

    def test_placements_of_different_models_have_no_difference(self):
        self.place(RULES, "a.json")
        self.espalier("plan", str(FIXTURES / "two_tower.pt2"), "--cluster", CLUSTER, "--batch", "16", "-p", "m-etf", "-o", "b.json")
        self.refused("diff", "a.json", "b.json", says="a.json and b.json are plans of different models")

    def test_wrong_placements_are_refused_in_one_line(self):
        for rules, says in (
            ('{"image*": "gpu:0"}', ["rules.json: no pattern matches operator", '"*": "gpu:0"']),
            ('{"*": "gpu:9"}', ["rules.json: *: 'gpu:9' is no device of the cluster", "did you mean 'gpu:0'"]),
            ('{"pathces*": "gpu:0", "*": "gpu:1"}', ["'pathces*' matches no operator or module"]),
            ("no rules", ["rules.json: line 1"]),
        ):
            self.write("rules.json", rules)
            self.refused("plan", MODEL, "--cluster", CLUSTER, "--placement", "rules.json", says=says)
        self.write("rules.json", RULES)
        self.refused("plan", MODEL, "--placement", "rules.json", "--planner", "single", says="leave out --planner")
        self.refused("plan", MODEL, "--placement", "gone.json", says="gone.json")
        self.refused("plan", MODEL, "--placement", "rules.json", "-o", "rules.json", says="is read, too")

    def test_what_does_not_fit_exits_3_with_a_plan_that_shows_it(self):
        (self.folder / "tiny.txt").write_text(
            "kind tiny 1KiB f32=1e12 f16=1e12 mem=1GB launch=5us sms=1\n"
            "group network 1GB latency=10us\n"
            "device gpu:0 tiny in network\ndevice gpu:1 tiny in network\n")
        self.write("rules.json", RULES)
        done = self.espalier("plan", MODEL, "--cluster", "tiny.txt", "--placement", "rules.json", code=3)
        self.assertIn("this plan does not fit", done.stderr)

    def test_placers_are_planners_by_name(self):
        listed = json.loads(self.espalier("planners", "--json").stdout)["planners"]
        # Those that learn need the runtime, and have tests of their own (learn_test.py).
        placers = [row["planner"] for row in listed if row["plans"] == "placement" and "asked for by name only" not in row["decides"]]
        self.assertNotIn("gdp", placers)
        asked = [row["planner"] for row in listed if row["asked_by_auto"]]
        self.assertIn("graphpipe", asked)
        self.assertFalse({"auto", "looped", *placers} & set(asked))
        for name in ("m-topo", "m-etf", "m-sct", "heft", "metis", "scotch", "multilevel"):
            self.assertIn(name, placers)
        said = self.espalier("plan", MODEL, "--cluster", CLUSTER, "--batch", "16", "--planner", "m-etf", "-o", "etf.json").stdout
        self.assertRegex(said, r"m-etf: \d+ operators in \d+ fragments, depth \d+, 1 micro-batch of 16")
        self.assertIn("placement", json.loads((self.folder / "etf.json").read_text()))
        simulated = json.loads(self.espalier("simulate", "etf.json", "--json").stdout)
        compare = ("compare", MODEL, "--cluster", CLUSTER, "--batch", "16", "--json")
        rows = json.loads(self.espalier(*compare, "--planner", ",".join(placers)).stdout)["rows"]
        self.assertEqual([row["planner"] for row in rows], placers)
        for row in rows:
            if row["planner"] == "dp":  # of three branches with their backward passes
                self.assertEqual(row["status"], "unsupported", row)
                self.assertIn("more than 60000 downsets", row["why"])
                continue
            if row["planner"] == "price":
                self.assertEqual(row["status"], "unsupported", row)
                self.assertIn("price_per_hour", row["why"])
                continue
            self.assertEqual(row["status"], "feasible", row)
            self.assertTrue(row["placement"], row)
            self.assertNotIn("price", row)
        by_name = {row["planner"]: row for row in rows}
        self.assertEqual(by_name["m-etf"]["iteration_ns"], simulated["iteration_ns"])
        usual = json.loads(self.espalier(*compare).stdout)["rows"]
        self.assertFalse(set(placers) & {row["planner"] for row in usual})

    def test_prices_of_devices_are_prices_of_plans(self):
        self.write("priced.txt", "kind fast preset=V100-16GB price=8\nkind slow preset=V100-16GB speed=0.5 price=1\n"
                                 "group network 100GB latency=5us\n"
                                 "device gpu:0 fast in network\ndevice gpu:1 slow in network\n")  # fmt: skip
        options = (MODEL, "--cluster", "priced.txt", "--batch", "16")
        # Half as fast for an eighth of the price.
        said = self.espalier("plan", *options, "--planner", "price", "-o", "cheap.json").stdout
        self.assertRegex(said, r"price \S+ a step; no placement is below price \S+ a step")
        self.assertRegex(said, r"price: \S+ a step, \S+ a million samples; 1 device at 1 an hour")
        self.assertRegex(self.espalier("simulate", "cheap.json").stdout, r"price: .*; 1 device at 1 an hour")
        price = json.loads(self.espalier("simulate", "cheap.json", "--json").stdout)["price"]
        compared = ("compare", *options, "--planner", "single,price,heft", "--plan", "cheap.json")
        rows = {row["planner"]: row for row in json.loads(self.espalier(*compared, "--json").stdout)["rows"]}
        self.assertEqual(rows["cheap.json"]["price"], price)
        self.assertEqual(rows["price"]["price"], price)
        for row in rows.values():
            self.assertLessEqual(price["per_step"], row["price"]["per_step"], row)
            self.assertAlmostEqual(row["price"]["per_step"],
                                   row["iteration_ns"] / 3.6e12 * row["price"]["per_hour"], delta=1e-15)  # fmt: skip
            self.assertAlmostEqual(row["price"]["per_million_samples"], row["price"]["per_step"] * 62500, delta=1e-9)
        said = self.espalier(*compared).stdout
        self.assertIn("price_million", said)
        self.assertRegex(said, r"cheapest: price, \S+ a million samples")
        said = self.espalier("compare", MODEL, "--cluster", CLUSTER, "--batch", "16", "--planner", "single").stdout
        self.assertNotIn("price", said)
        self.write("half.txt", "kind fast preset=V100-16GB price=8\ngroup network\n"
                               "device gpu:0 fast\ndevice gpu:1 V100-16GB\n")  # fmt: skip
        self.refused("plan", MODEL, "--cluster", "half.txt", says=["'gpu:1' has no price per hour", "or for none"])

    def test_a_placer_keeps_pins_and_says_what_lacks(self):
        plan = ("plan", MODEL, "--cluster", CLUSTER, "--batch", "16", "--planner", "heft")
        self.espalier(*plan, "--pin", "image*=gpu:1", "-o", "pinned.json")
        (self.folder / "tiny.txt").write_text(
            "kind tiny 1KiB f32=1e12 f16=1e12 mem=1GB launch=5us sms=1\n"
            "group network 1GB latency=10us\n"
            "device gpu:0 tiny in network\ndevice gpu:1 tiny in network\n")
        for name in ("m-etf", "one-device", "multilevel"):
            done = self.espalier("plan", MODEL, "--cluster", "tiny.txt", "--batch", "16", "--planner", name, code=3)
            self.assertIn(f"{name}: no plan (infeasible)", done.stdout)


if __name__ == "__main__":
    if not BINARY:
        sys.exit(77)
    unittest.main()
