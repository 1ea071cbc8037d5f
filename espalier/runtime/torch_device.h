#pragma once

// The device that computes for a worker. Includes libtorch; runtime/ only.

#include <ATen/ATen.h>

#include <string>

namespace espalier {

// "cpu", "cuda", "cuda:1"; empty: cuda where there is one. Throws InputError naming those there are.
at::Device parse_device(const std::string& text);

}  // namespace espalier
