#!/usr/bin/env python3
"""The literature's planners in their authors' cost models, as a user meets them.

Standard library only. Skipped (77) where the program is not built.
"""

import json
import pathlib
import sys
import unittest

from command import BINARY, Command

WORKLOADS = pathlib.Path(__file__).resolve().parents[2] / "workloads"
MSR = WORKLOADS / "dnn-partitioning" / "throughput-inputs" / "LayerGraphs" / "bert24_inference.json"
LATENCY = WORKLOADS / "dnn-partitioning" / "latency-inputs" / "LayerGraphs" / "bert24_inference.json"
PIPER = WORKLOADS / "piper" / "inputs" / "bert32a100.json"
PIPEDREAM = WORKLOADS / "pipedream" / "image_classification" / "profiles" / "vgg16" / "graph.txt"


class Literal(Command):
    def answer(self, *arguments, code=0):
        return json.loads(self.espalier("literal", *arguments, "--json", code=code).stdout)

    def test_each_planner_prints_objective_partition_and_search(self):
        text = self.espalier("literal", "dpl", MSR, "--devices", "6").stdout
        for words in ("dpl: max-load 17.7", "accelerator:5", "28 items", "pairs priced"):
            self.assertIn(words, text)
        text = self.espalier("literal", "search", MSR, "--devices", "6").stdout
        self.assertIn("search: max-load 17.71", text)
        text = self.espalier("literal", "piper", PIPER, "--devices", "8", "--memory", "8GiB", "--bandwidth", 25 * 2**30).stdout
        for words in ("time per sample 0.165856", "8 devices", "43 downsets"):
            self.assertIn(words, text)
        text = self.espalier("literal", "pipedream", PIPEDREAM, "--devices", "16").stdout
        for words in ("pipedream: 0.0565", "40 antichains"):
            self.assertIn(words, text)
        text = self.espalier("literal", "torchgpipe", PIPEDREAM, "--devices", "4").stdout
        for words in ("torchgpipe: largest block 235.59", "the best cut has 216.45"):
            self.assertIn(words, text)
        text = self.espalier("literal", "dapple", PIPEDREAM, "--devices", "4,2", "--bandwidth", "25e9,1e9", "--micro-batches", "16").stdout
        for words in ("ms per step of 16 micro-batches", "devices by machine", "plans priced"):
            self.assertIn(words, text)
        text = self.espalier("literal", "autopipe", PIPEDREAM, "--devices", "4").stdout
        for words in ("ms per step of 8 micro-batches", "master: stage", "partitions priced"):
            self.assertIn(words, text)
        text = self.espalier("literal", "bapipe", PIPEDREAM, "--devices", "4").stdout
        for words in ("ms per step of 8 micro-batches by 1F1B-S", "memory"):
            self.assertIn(words, text)
        self.assertIn("by 1F1B-AS", self.espalier("literal", "bapipe", PIPEDREAM, "--devices", "4", "--streaming").stdout)
        text = self.espalier("literal", "local-search", MSR, "--devices", "6").stdout
        self.assertIn("local-search: max-load 17.7", text)
        text = self.espalier("literal", "greedy", LATENCY).stdout
        self.assertIn("greedy: latency 100.219", text)

    def test_json_places_every_node_once(self):
        nodes = [node["id"] for node in json.loads(MSR.read_text())["nodes"]]
        for planner in ("dp", "dpl"):
            answer = self.answer(planner, MSR)
            self.assertEqual(round(answer["max_load"], 2), 17.79)
            self.assertEqual(sorted(sum((device["nodes"] for device in answer["devices"]), [])), sorted(nodes))
        answer = self.answer("piper", PIPER, "--devices", "64", "--memory", "8GiB", "--bandwidth", 25 * 2**30)
        self.assertEqual(sorted(sum((stage["layers"] for stage in answer["stages"]), [])), list(range(37)))
        self.assertEqual(sum(stage["data_parallel"] * stage["tensor_parallel"] for stage in answer["stages"]), answer["devices"])
        layers = sorted(line.split(" -- ")[0] for line in PIPEDREAM.read_text().splitlines() if " -- " in line and not line.startswith("\t")
                        and "Input" not in line)  # fmt: skip
        for planner, parts, devices in (("torchgpipe", "blocks", "4"), ("autopipe", "stages", "4"), ("bapipe", "stages", "4"),
                                        ("dapple", "stages", "4,2")):  # fmt: skip
            answer = self.answer(planner, PIPEDREAM, "--devices", devices)
            self.assertEqual(sorted(sum((part["layers"] for part in answer[parts]), [])), layers)
        self.assertEqual([sum(machine) for machine in zip(*(stage["devices_by_machine"] for stage in answer["stages"]))], [4, 4])
        answer = self.answer("pipedream", PIPEDREAM, "--devices", "4,4", "--bandwidth", "1.25e10,1.25e9")
        self.assertEqual(round(answer["time_s"] * 1000, 2), 66.84)

    def test_without_takes_a_freedom_away(self):
        settings = (PIPER, "--devices", "8", "--memory", "80GiB", "--bandwidth", 25 * 2**30)
        best = self.answer("piper", *settings)["time_per_sample"]
        self.assertEqual(round(self.answer("piper", *settings, "--without", "data")["time_per_sample"] / best, 2), 1.35)
        charged = self.answer("pipedream", PIPEDREAM, "--devices", "16")["time_s"]
        self.assertLess(self.answer("pipedream", PIPEDREAM, "--devices", "16", "--without", "transfers")["time_s"], charged)

    def test_equal_stages_are_no_better_than_pipers(self):
        settings = (PIPER, "--devices", "8", "--memory", "8GiB", "--bandwidth", 25 * 2**30)
        best, equal = (self.answer(planner, *settings)["time_per_sample"] for planner in ("piper", "equal"))
        self.assertEqual(round(equal / best, 2), 1.39)

    def test_a_given_placement_is_priced(self):
        placement = WORKLOADS / "dnn-partitioning" / "human-experts" / "bert24_inference_expert.json"
        self.assertEqual(round(self.answer("expert", MSR, "--placement", placement)["max_load"], 2), 20.08)
        latency = self.answer("expert", LATENCY, "--placement", placement, "--objective", "latency")
        self.assertEqual((round(latency["latency"], 2), round(latency["bound"], 2)), (111.94, 92.41))
        self.assertIn("latency 111.937", self.espalier("literal", "expert", LATENCY, "--placement", placement, "--objective", "latency").stdout)
        self.refused("literal", "expert", MSR, "--placement", placement, "--objective", "price", says="expected max-load or latency")
        self.refused("literal", "dp", MSR, "--objective", "latency", says="--objective is no part of its model")
        self.refused("literal", "expert", MSR, says="--placement names the file to price")
        self.refused("literal", "dp", MSR, "--placement", placement, says="--placement is no part of its model")

    def test_no_answer_is_told_with_its_own_exit_code(self):
        self.assertIn("no chain of downsets fits", self.answer("dpl", MSR, "--cpus", "0", "--memory", "1MB", code=3)["why"])
        self.assertIn("40 layers cannot", self.answer("torchgpipe", PIPEDREAM, "--devices", "64", code=3)["why"])
        self.assertIn("no answer: no plan fits", self.espalier("literal", "piper", PIPER, "--devices", "8", "--memory", "1GiB",
                                                               code=3).stdout)  # fmt: skip

    def test_wrong_input_is_refused(self):
        self.refused("literal", "dq", MSR, says="there is no planner 'dq'; expected dp, dpl, search, local-search, expert, greedy, piper, equal, pipedream, "
                     "torchgpipe, dapple, autopipe or bapipe")  # fmt: skip
        self.refused("literal", "dp", PIPER, says="is a Piper input; `literal dp` reads a dnn-partitioning input")
        self.refused("literal", "piper", PIPEDREAM, says="is a PipeDream profile; `literal piper` reads a Piper input")
        self.refused("literal", "dp", self.write("a.txt", "x = input()\n"), says="a.txt: is no published profile")
        self.refused("literal", "dp", MSR, "--bandwidth", "1", says="--bandwidth is no part of its model")
        self.refused("literal", "piper", PIPER, "--without", "love", says="--without love: expected data, tensor, recompute")
        self.refused("literal", "dp", MSR, "--devices", "4,4", says="--devices takes one number")
        self.refused("literal", "pipedream", PIPEDREAM, says="--devices says how many")
        self.refused("literal", "pipedream", PIPEDREAM, "--devices", "4,4", "--bandwidth", "1,2,3", says="one for each level")
        self.refused("literal", "torchgpipe", PIPEDREAM, says="--devices says how many blocks")
        self.refused("literal", "torchgpipe", PIPER, "--devices", "4", says="is a Piper input; `literal torchgpipe` reads a PipeDream profile")
        self.refused("literal", "dapple", PIPEDREAM, "--devices", "4,2,2", says="or 8,2 for two machines of eight")
        self.refused("literal", "dapple", PIPEDREAM, "--devices", "4", "--memory", "1GiB", says="--memory is no part of its model")
        self.refused("literal", "autopipe", PIPEDREAM, says="--devices says how many stages")
        self.refused("literal", "bapipe", PIPEDREAM, "--devices", "4,4", says="--devices says how many stages")
        self.refused("literal", "dapple", PIPEDREAM, "--devices", "4", "--streaming", says="--streaming is no part of its model")
        self.refused("literal", "local-search", MSR, "--memory", "1GiB", says="--memory is no part of its model")
        self.refused("literal", "greedy", LATENCY, "--placement", LATENCY, says="--placement is no part of its model")
        self.refused("literal", "dp", "gone.json", says="gone.json")


if __name__ == "__main__":
    if not BINARY:
        print("skipped: ESPALIER_BINARY is not set")
        sys.exit(77)
    unittest.main()
