#pragma once

// Orders that come from outside: of plan files, and schedule files of their own.

#include <string>
#include <string_view>

#include "espalier/plan/plan_file.h"
#include "espalier/schedule/schedule.h"

namespace espalier {

// The schedule of a plan file. Throws InputError "<where>: …" if its rule does not stand any more for what it
// stood for when the file was made, or if check_schedule finds something.
Schedule schedule_of(const PlanFile& file, const std::string& where);

// A schedule file, in one of these forms:
//   1f1b,k=2                     a rule
//   gpu0  3F 29(B F) 3B          a list for each device (orders.h)
//   gpu0  F0 F1 B0 F2 B1 B2 …    the same with micro-batches, as print_schedule writes it
//   {"format": "espalier.schedule/1", …}
// Blank lines and lines that begin with '#' do not count. Throws InputError "<where>: line 3: …" where it
// cannot be read. Lists may break rules: check_schedule.
Orders parse_order_file(std::string_view text, const std::string& where, const StagedModel& model,
                        const Cluster& cluster);

// The model with other orders and the in-flight limits of in_flight_limits.
StagedModel with_orders(StagedModel model, Orders orders);

}  // namespace espalier
