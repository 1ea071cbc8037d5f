#pragma once

// What a call reads and writes. Internal to the frontend.

#include <initializer_list>
#include <string_view>
#include <vector>

#include "espalier/frontend/exported_program.h"

namespace espalier {

bool among(std::string_view name, std::initializer_list<std::string_view> names);

const Argument* argument_of(const Call& call, std::string_view name);  // null if it is at its default

std::vector<TensorId> tensors_read(const Call& call);  // in the order of the schema, repeated if read twice
std::vector<TensorId> tensors_written(const Call& call);  // outputs that somebody uses

}  // namespace espalier
