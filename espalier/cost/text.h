#pragma once

// Lines of a CostTable, for tests; they parse back. Files hold the JSON form (cost/json.h).
//
//   machine "AMD EPYC, 2 cores" threads=1 torch=2.13.0
//   overhead cpu action=20us neighbour=30 spread=80 device-spread=40 first=1ms adam=50us+12ps/B
//   link 2GB latency=40us send=100us+400ps/B receive=20us+100ps/B
//   cost linear(f32[b,16],f32[16,16]) cpu batch=4 f=2ms i=2ms w=2ms saved=in0,out0 origin=measured
//
// A cost line also takes private=64B private-for-input=32B between=64B workspace=1KiB tp=2 reduce-f=4KiB
// reduce-i=4KiB recompute by=winograd (an implementation's name) extrapolated. What is left out
// is zero; lines of one class, kind, variant and implementation make one row. Names that hold blanks stand in
// quotes.

#include <string>
#include <string_view>

#include "espalier/cost/cost_table.h"

namespace espalier {

CostTable parse_costs(std::string_view text);  // throws InputError "line 3: …"
std::string print_costs(const CostTable& table);

}  // namespace espalier
