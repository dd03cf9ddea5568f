"""Operations by name: what each one does to numbers."""

from __future__ import annotations

# Calls that read a live tensor's numbers out of torch: what happens to them next cannot be seen.
LEAVES_TORCH = {"item", "tolist", "numpy", "__float__", "__int__", "__array__", "__dlpack__"}

# Calls whose result has the input's shape or type but not its values: constants of the run.
FORGETS_VALUES = {
    *("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"),
}

# Calls that only move numbers about, or pass them on unchanged.
STRUCTURAL = {
    *("reshape", "view", "view_as", "reshape_as", "flatten", "unflatten", "ravel", "permute", "transpose"),
    *(
        "t",
        "T",
        "mT",
        "H",
        "mH",
        "adjoint",
        "swapaxes",
        "swapdims",
        "movedim",
        "moveaxis",
        "squeeze",
        "unsqueeze",
    ),
    *("expand", "expand_as", "broadcast_to", "repeat", "tile", "repeat_interleave", "contiguous", "clone"),
    *(
        "detach",
        "data",
        "real",
        "to",
        "type",
        "type_as",
        "float",
        "double",
        "half",
        "bfloat16",
        "cpu",
        "cuda",
    ),
    *(
        "cat",
        "stack",
        "hstack",
        "vstack",
        "dstack",
        "column_stack",
        "split",
        "tensor_split",
        "chunk",
        "unbind",
    ),
    *("split_with_sizes", "unsafe_chunk", "unsafe_split", "hsplit", "vsplit", "dsplit", "diag", "diag_embed"),
    *(
        "narrow",
        "select",
        "index_select",
        "__getitem__",
        "take_along_dim",
        "gather",
        "masked_select",
        "unfold",
    ),
    *("pad", "constant_pad_nd", "roll", "flip", "fliplr", "flipud", "rot90", "diagonal", "pixel_shuffle"),
    *(
        "pixel_unshuffle",
        "channel_shuffle",
        "tril",
        "triu",
        "alias",
        "broadcast_tensors",
    ),
    *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"),
    *("feature_dropout", "native_dropout", "meshgrid", "atleast_1d", "atleast_2d", "atleast_3d", "positive"),
}

VIEWS = {"view", "view_as"}  # run again as reshapes: other tensors may lie in memory in another order

# Calls that stay linear in a live tensor while their other operand is a constant.
ARITHMETIC = {"add", "sub", "rsub", "__rsub__", "mul", "div", "neg"}

INPLACE_OPERATORS = {
    "__iadd__": "add",
    "__isub__": "sub",
    "__imul__": "mul",
    "__itruediv__": "div",
    "__idiv__": "div",
    "__ipow__": "pow",
}

ALIASES = {
    "__add__": "add",
    "__radd__": "add",
    "__sub__": "sub",
    "__mul__": "mul",
    "__rmul__": "mul",
    "__truediv__": "div",
    "true_divide": "div",
    "divide": "div",
    "multiply": "mul",
    "subtract": "sub",
    "__neg__": "neg",
    "negative": "neg",
    "__matmul__": "matmul",
    "__rmatmul__": "matmul",
    "mm": "matmul",
    "__pow__": "pow",
    "concat": "cat",
    "concatenate": "cat",
    "absolute": "abs",
    "clip": "clamp",
}

CONVOLUTIONS = {f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)}

LINEAR = STRUCTURAL | {
    *(
        "add",
        "sub",
        "rsub",
        "__rsub__",
        "neg",
        "sum",
        "mean",
        "nansum",
        "cumsum",
        "diff",
        "trace",
        "addmm",
        "baddbmm",
    ),
    *(
        "addbmm",
        "addmv",
        "mv",
        "dot",
        "bmm",
        "matmul",
        "einsum",
        "tensordot",
        "inner",
        "outer",
        "kron",
    ),
    *(
        "mul",
        "div",
        "lerp",
        "where",
        "masked_fill",
        "masked_scatter",
        "index_add",
        "scatter",
        "scatter_add",
        "addcmul",
    ),
    *(
        "avg_pool1d",
        "avg_pool2d",
        "avg_pool3d",
        "adaptive_avg_pool1d",
        "adaptive_avg_pool2d",
        "adaptive_avg_pool3d",
    ),
    *("interpolate", "upsample", "upsample_nearest", "upsample_bilinear", "grid_sample", "fold", "linear"),
    *(
        "ldexp",
        "copy",
        "index_copy",
        "index_fill",
        "index_put",
        "select_scatter",
        "slice_scatter",
        "sum_to_size",
    ),
    *CONVOLUTIONS,
}
ACTIVATIONS = {
    *(
        "gelu",
        "silu",
        "mish",
        "tanh",
        "tanhshrink",
        "leaky_relu",
        "elu",
        "selu",
        "celu",
        "hardswish",
        "hardtanh",
    ),
    *(
        "relu6",
        "prelu",
        "rrelu",
        "softsign",
        "softshrink",
        "hardshrink",
        "threshold",
        "abs",
        "erf",
        "sin",
        "sinh",
    ),
    *("asinh", "atan", "arctan", "sqrt", "expm1", "log1p", "square", "pow", "tan"),
}
CLAMPS = {"clamp", "clamp_min", "clamp_max"}
NORMS = {"layer_norm", "group_norm", "instance_norm", "rms_norm", "normalize", "batch_norm"}
ATTENTION = {"scaled_dot_product_attention", "multi_head_attention_forward"}
SELECTIONS = {
    *("max", "min", "amax", "amin", "maximum", "minimum", "fmax", "fmin", "topk", "sort"),
    *(f"{a}max_pool{n}d{i}" for a in ("", "adaptive_") for n in (1, 2, 3) for i in ("", "_with_indices")),
}
# A factor made by one of these is a gate or a scale: it is the one to freeze. The second set are activations
# that gate a linear branch (SwiGLU, GEGLU).
SCALES = {"softmax", "sigmoid", "hardsigmoid", "rsqrt", "reciprocal", "tanh", "erf", "softplus", "exp"}
GATING = {"silu", "gelu", "relu", "mish", "hardswish"}
PRODUCTS = {"mul", "matmul", "bmm", "einsum", "inner", "mv", "dot", "outer", "tensordot"}
MULTIPLYING = PRODUCTS | CONVOLUTIONS
MULTIPLYING |= {"addmm", "baddbmm", "addbmm", "addmv", "linear", "addcmul", "kron"}
IDENTITIES = {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"}
IDENTITIES |= {"contiguous", "clone", "detach", "data", "alias", "positive"}
# Identities where type and device stay: what is left of them is a change of memory layout.
IDENTITIES |= {"to", "type", "type_as", "float", "double", "half", "bfloat16", "cpu", "cuda"}
