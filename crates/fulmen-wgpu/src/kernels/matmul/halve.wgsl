// Rows of A in 16 bits, one workgroup a row: multiplied by the power of two that brings the largest value of the row
// near 2^13, and the inverse of that power. A row with a value that is not finite becomes zeros and a NaN.
struct Params { m: u32, k: u32, stride: u32 }
@group(0) @binding(0) var<storage, read> src: array<{{element}}>;
@group(0) @binding(1) var<storage, read_write> dst: array<vec4<f16>>;
@group(0) @binding(2) var<storage, read_write> scales: array<f32>;
const THREADS = {{threads}}u;
var<workgroup> largest: array<u32, {{threads}}>;

{{get}}
fn at(row: u32, v: u32) -> vec4<f32> {
{{load}}
}

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = wid.x + grid.x * (wid.y + grid.y * wid.z);
    if (row >= params.m) { return; }
    // The bits of magnitudes are in the order of the magnitudes, infinities and NaN last.
    var bits = vec4<u32>();
    for (var v = local; v < params.stride; v += THREADS) {
        bits = max(bits, bitcast<vec4<u32>>(at(row, v)) & vec4<u32>(0x7fffffffu));
    }
    largest[local] = max(max(bits.x, bits.y), max(bits.z, bits.w));
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if (local < half) { largest[local] = max(largest[local], largest[local + half]); }
        workgroupBarrier();
    }
    let most = largest[0];
    let strange = most >= 0x7f800000u;
    // The exponent of the power: 13 less than that of the largest, and no power beyond 2^100.
    let exponent = clamp(127 + 13 - (i32(most >> 23u) - 127), 13, 227);
    let power = bitcast<f32>(u32(exponent) << 23u);
    for (var v = local; v < params.stride; v += THREADS) {
        dst[row * params.stride + v] = vec4<f16>(select(at(row, v) * power, vec4<f32>(), strange));
    }
    if (local == 0u) {
        scales[row] = select(bitcast<f32>(u32(254 - exponent) << 23u), bitcast<f32>(0x7fc00000u), strange);
    }
}
