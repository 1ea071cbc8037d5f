#pragma once

// Written forms of task graphs, and their checker. Lines for people and tests:
//
//   links 3
//   lane in-order 2 0          lanes are numbered as they come; an in-order lane lists its tasks
//   lane by-priority
//   account 64                 bytes held from the start, by account
//   task 2ms delay 500us lane 0 priority 3 links 0 2 then 1 4
//   task 9ms gives-way links 0 2
//   memory 0 start 1 -64       task, when (start, end, arrival), account, bytes
//
// Tasks are numbered as they come; what a task line leaves out is zero or none. parse(print(x)) == x.

#include <string>
#include <string_view>
#include <vector>

#include "espalier/sim/task_graph.h"

namespace espalier {

// Printing needs a graph without violation of `shape`.
std::string print_task_graph(const TaskGraph& graph);
TaskGraph parse_task_graph(std::string_view text);  // throws InputError "line 3: …"

// Rules; each violation is one line that begins with the rule's name:
//   shape    arrays by task and lane have one entry each; each `begin` ascends from 0 to what it divides
//   range    lanes, links, tasks and accounts exist; times and initial bytes are not negative
//   links    a task's links differ from one another; one that gives way has some and stands in no lane
//   lanes    an in-order lane lists each of its tasks once and nothing else; a lane by priority lists none
//            and has no task with links
//   acyclic  dependencies ∪ orders of lanes have no cycle
// `range` is checked where `shape` holds, the others where both do.
std::vector<std::string> check_task_graph(const TaskGraph& graph);

}  // namespace espalier
