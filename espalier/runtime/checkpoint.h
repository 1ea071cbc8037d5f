#pragma once

// Tensors by name in a safetensors file. Includes libtorch; runtime/ only.

#include <ATen/ATen.h>

#include <map>
#include <string>

namespace espalier {

// Throws InputError naming file and tensor.
std::map<std::string, at::Tensor> read_tensors(const std::string& path);

// Atomically. `metadata` goes into the header.
void write_tensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                   const std::map<std::string, std::string>& metadata);

}  // namespace espalier
