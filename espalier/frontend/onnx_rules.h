#pragma once

// The rules of single operators: what they give for the inputs of a call. Each throws Unknown where it cannot
// tell. Internal to the frontend.

#include "espalier/frontend/onnx_call.h"

namespace espalier::onnx {

// Layers (onnx_layers.cc): what holds weights, or reduces a window or a row.
void layer_norm(OnnxCall& call);
void batch_norm(OnnxCall& call);
void skip_layer_norm(OnnxCall& call);
void dropout(OnnxCall& call);
void matmul(OnnxCall& call);
void quantized_matmul(OnnxCall& call);
void matmul_few_bits(OnnxCall& call);
void convolution(OnnxCall& call);
void transposed_convolution(OnnxCall& call);
void pool(OnnxCall& call);
void global_pool(OnnxCall& call);
void einsum(OnnxCall& call);
void recurrent(OnnxCall& call);
void attention(OnnxCall& call);
void attention_with_weights(OnnxCall& call);
void multi_head_attention(OnnxCall& call);

// Shapes (onnx_shapes.cc): what moves elements, and computes with sizes.
void reshape(OnnxCall& call);
void flatten(OnnxCall& call);
void squeeze(OnnxCall& call);
void unsqueeze(OnnxCall& call);
void concat(OnnxCall& call);
void split(OnnxCall& call);
void slice(OnnxCall& call);
void transpose(OnnxCall& call);
void gather(OnnxCall& call);
void gather_elements(OnnxCall& call);
void gather_nd(OnnxCall& call);
void expand(OnnxCall& call);
void tile(OnnxCall& call);
void pad(OnnxCall& call);
void resize(OnnxCall& call);
void blocks_to_space(OnnxCall& call);
void shape(OnnxCall& call);
void size_of_all(OnnxCall& call);

// Parts of rules: the first input's type and sizes; its elements, as far as they are known.
void like_first(OnnxCall& call);
void keep_elements(OnnxCall& call);
// The elements of an input of whole numbers, as sizes.
const Sizes& shape_input(const OnnxCall& call, std::size_t input);

}  // namespace espalier::onnx
