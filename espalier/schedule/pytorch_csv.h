#pragma once

// Schedules as torch.distributed.pipelining writes and reads them (PyTorch 2.13, `_dump_csv` and `_load_csv`
// of its multi-stage schedules): a row for each rank, a cell for each action.
//
//     0F0,0F1,0F2,0I0,0W0,…          stage, letter (F, B, I, W as here), micro-batch
//     ,1F0,1F1,1I0,1F2,1W0,…         an empty cell: a bubble
//     (0F4;3B1)OVERLAP_F_B           two that run side by side: here one after the other
//     0SEND_F1, 1RECV_B0, 2UNSHARD   messages and parameters of the `compute_comms` form: channels follow
//     from
//                                    the orders, so these are passed over
//
// Stages are numbered as here. Which device a row belongs to follows from its stages.

#include <string>
#include <string_view>

#include "espalier/cluster/cluster.h"
#include "espalier/schedule/schedule.h"

namespace espalier {

// Throws InputError "<where>: row 2: …": a cell of another form, a stage that the model lacks or that another
// row's device has, micro-batches that do not ascend. I of a stage without weights is read as B, and its W
// passed over. Lists may break rules: check_schedule.
OrderLists parse_pytorch_csv(std::string_view text, const std::string& where, const StagedModel& model,
                             const Cluster& cluster);

// The compute_only form: rows by each device's lowest stage, without bubbles; R, A, T and U are PyTorch's own
// affair. Throws InputError where a stage has several devices, which PyTorch's schedules do not know.
std::string print_pytorch_csv(const StagedModel& model, const Schedule& schedule);

}  // namespace espalier
