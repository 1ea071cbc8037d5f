#pragma once

// Chains laid in a V over a row of devices: the first and the last part of the chain stand on the first
// device, so all devices hold activations for about as long, where in a row the first holds most and the last
// least (Qi et al., NeurIPS'24, arXiv 2405.15362). How much that is the order of passes decides: as much as
// the row's first device, three quarters of it, half or a third. What a device has no room for then is
// computed again.
//
//     device   pieces on the way down   and up     kept of each micro-batch in flight
//     0        0 1                      14 15      parameters | 5 × (0 1) + 1 × (14 15), as far as that fits
//     1        2 3                      12 13      parameters | 4 × (2 3) + 2 × (12 13)
//     2        4 5                      10 11
//     3        6 7                       8  9

#include <span>
#include <vector>

#include "espalier/planners/candidate.h"
#include "espalier/planners/pipeline/piece_table.h"

namespace espalier {

// Judges, for each row and each of four orders, chains of these pieces: cut so that the device with most to
// do, with what it computes again, has least. A device's pieces that hold most for each second of theirs are
// computed again first, as many as memory asks for. What does not fit by simulation is cut anew, twice, on as
// much less memory as was too much. Leaves out what cannot be faster than the judge's best plan. All tables
// are of one micro-batch. Plans carry lists (schedule/v_schedules.h, orders/zero_bubble_v.h), with whole
// backwards where the costs' halves are a guess. A state is a micro-batch of a stage.
void judge_v_chains(const Problem& problem, std::span<const PieceTable* const> tables,
                    const std::vector<std::vector<DeviceId>>& rows, Judge& judge, Context& context);

}  // namespace espalier
