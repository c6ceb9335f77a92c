"""What a kernel may name: the part of Triton's language that computes, as data.

Left out on purpose: submodules (tl.core, tl.semantic, tl.standard, ...), everything with an underscore, printing, and
clocks. A test holds these names against the installed Triton.
"""

# Functions of `triton` itself that kernels use; they compute on constants and scalars.
TRITON_FUNCTIONS = frozenset({"cdiv", "next_power_of_2"})

TL_TYPES = frozenset(
    "bfloat16 float16 float32 float64 float8e4b15 float8e4b8 float8e4nv float8e5 float8e5b16 int1 int8 int16 int32 "
    "int64 uint8 uint16 uint32 uint64 void".split()
)

TL_FUNCTIONS = frozenset(
    "abs add arange argmax argmin associative_scan assume atomic_add atomic_and atomic_cas atomic_load "
    "atomic_max atomic_min atomic_or atomic_poll atomic_store atomic_xchg atomic_xor broadcast broadcast_to cast cat "
    "cdiv ceil clamp cos cumprod cumsum debug_barrier device_assert div_rn dot dot_scaled erf exp exp2 expand_dims "
    "fdiv flip floor fma full gather histogram inline_asm_elementwise interleave join load load_tensor_descriptor log "
    "log2 make_block_ptr make_tensor_descriptor map_elementwise max max_constancy max_contiguous maximum min minimum "
    "mul multiple_of num_programs permute philox program_id rand rand4x randint randint4x randn randn4x range ravel "
    "reduce reduce_or reshape rsqrt sigmoid sin softmax sort split sqrt sqrt_rn squeeze static_assert static_range "
    "store store_tensor_descriptor sub sum swizzle2d to_tensor topk trans umulhi unsqueeze view where xor_sum zeros "
    "zeros_like".split()
)

# Classes that kernels construct.
TL_CLASSES = frozenset({"constexpr", "pointer_type"})

TL_CONSTANTS = frozenset({"PropagateNan.ALL", "PropagateNan.NONE", "TRITON_MAX_TENSOR_NUMEL"})

TL_MATH = frozenset("abs ceil cos div_rn erf exp exp2 fdiv floor fma log log2 rsqrt sin sqrt sqrt_rn umulhi".split())

# Programmatic dependent launch.
TL_CUDA = frozenset({"gdc_wait", "gdc_launch_dependents"})

LIBDEVICE = frozenset(
    "abs acos acosh add_rd add_rn add_ru add_rz asin asinh atan atan2 atanh brev byte_perm cbrt ceil clz copysign cos "
    "cosh cospi div_rd div_rn div_ru div_rz erf erfc erfcinv erfcx erfinv exp exp10 exp2 expm1 fast_cosf fast_dividef "
    "fast_exp10f fast_expf fast_log10f fast_log2f fast_logf fast_powf fast_sinf fast_tanf fast_tanhf fdim ffs finitef "
    "float2int_rd float2int_rn float2int_ru float2int_rz float2uint_rd float2uint_rn float2uint_ru float2uint_rz "
    "float_as_int float_as_uint floor fma fma_rd fma_rn fma_ru fma_rz fmod hypot ilogb int2float_rd int2float_rn "
    "int2float_ru int2float_rz int_as_float isfinited isinf isnan ldexp lgamma log log10 log1p log2 logb mul24 mul_rd "
    "mul_rn mul_ru mul_rz mulhi nearbyint nextafter normcdf normcdfinv popc pow rcbrt rcp_rd rcp_rn rcp_ru rcp_rz "
    "remainder rint round rsqrt rsqrt_rn saturatef scalbn signbit sin sinh sinpi sqrt sqrt_rd sqrt_rn sqrt_ru sqrt_rz "
    "sub_rd sub_rn sub_ru sub_rz tan tanh tgamma trunc uint2float_rd uint2float_rn uint2float_ru uint2float_rz "
    "uint_as_float".split()
)

# Attributes of tensors, descriptors, types and constants.
VALUE_ATTRIBUTES = frozenset(
    "T abs advance argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_load atomic_max atomic_min "
    "atomic_or atomic_poll atomic_store atomic_xchg atomic_xor broadcast_to cast cdiv ceil cos cumprod cumsum erf exp "
    "exp2 expand_dims flip floor gather histogram item load log log2 logical_and logical_or max min permute ravel "
    "reduce reduce_or reshape rsqrt scatter sigmoid sin softmax sort split sqrt sqrt_rn store sum to trans view "
    "xor_sum block_shape block_type dtype element_ty numel primitive_bitwidth scalar shape type value is_bf16 is_block "
    "is_bool is_floating is_fp16 is_fp32 is_fp64 is_fp8 is_int is_int_signed is_int_unsigned is_ptr "
    "is_standard_floating".split()
)

# Python's builtins that the compiler knows and that only compute; the rest it would refuse as well.
BUILTINS = frozenset({"float", "int", "len", "max", "min", "range"})

# Calls whose arguments may be strings in any position (element formats, messages, PTX), and the keywords that take one.
STRING_CALLS = frozenset(
    {"tl.device_assert", "tl.dot_scaled", "tl.inline_asm_elementwise", "tl.static_assert", "tl.make_tensor_descriptor"}
)
STRING_KEYWORDS = frozenset(
    "boundary_check cache_modifier eviction_policy fp_downcast_rounding input_precision padding_option scope sem "
    "format asm constraints msg".split()
)
