#pragma once

// The part of libtorch that every file of runtime/ and learned/ needs, compiled once for all of them. Include
// what you use in each file all the same. c10d is left out: few files need it, and it would double the size.

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd.h>
