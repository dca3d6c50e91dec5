// Tiles of the result from A as int8 codes. A workgroup computes {{bm}} by {{bn}} values, each thread {{tm}} by {{tn}}: rows
// and columns that lie as far apart as there are threads beside it, so that neighbours read neighbouring memory. Slabs of
// {{depth}} items of 32 elements go through workgroup memory as codes; sums of an item are integers.
const BM = {{bm}}u;
const BN = {{bn}}u;
const TX = {{tx}}u;
const TY = {{ty}}u;
const DEPTH = {{depth}}u;
const THREADS = {{threads}}u;
// One more than there are rows: the items of a row do not meet in one bank.
const LDA = {{lda}}u;
const LDB = {{ldb}}u;
var<workgroup> codes_a: array<vec4<u32>, {{words_a}}>;
var<workgroup> codes_b: array<vec4<u32>, {{words_b}}>;
var<workgroup> more_a: array<vec2<f32>, {{more_a}}>;
var<workgroup> more_b: array<vec2<f32>, {{more_b}}>;

fn dot16(x: vec4<u32>, y: vec4<u32>) -> i32 {
    return dot4I8Packed(x.x, y.x) + dot4I8Packed(x.y, y.y) + dot4I8Packed(x.z, y.z) + dot4I8Packed(x.w, y.w);
}

fn kept(codes: vec4<u32>) -> vec4<u32> { return {{kept}}; }

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let group = wid.x + grid.x * (wid.y + grid.y * wid.z);
    if (group >= params.count) { return; }
    let tiles_m = (params.m + BM - 1u) / BM;
    let tiles_n = (params.n + BN - 1u) / BN;
    let slice = group / (tiles_m * tiles_n);
    let tile = group % (tiles_m * tiles_n);
    let row0 = (tile % tiles_m) * BM;
    let col0 = (tile / tiles_m) * BN;
    let items = params.k / 32u;
    let row_of_a = ((items + 7u) / 8u) * 24u;
    let row_of_w = row_length();
    let tx = local % TX;
    let ty = local / TX;
{{sums}}
    let begin = slice * params.span;
    let end = min(begin + params.span, items);
    for (var first = begin; first < end; first += DEPTH) {
        for (var p = local; p < BM * DEPTH; p += THREADS) {
            let t = p % DEPTH;
            let row = p / DEPTH;
            let it = min(first + t, end - 1u);
            let at = min(row0 + row, params.m - 1u) * row_of_a + (it >> 3u) * 24u + (it & 7u);
            let more = bitcast<vec4<f32>>(a[at + 16u]);
            codes_a[2u * t * LDA + row] = a[at];
            codes_a[(2u * t + 1u) * LDA + row] = a[at + 8u];
            // What lies past the end counts for nothing.
            more_a[t * BM + row] = select(vec2<f32>(), more.xw, first + t < end);
        }
        for (var p = local; p < BN * DEPTH; p += THREADS) {
            let t = p % DEPTH;
            let col = p / DEPTH;
            let it = min(first + t, end - 1u);
            let item = decode(fetch(min(col0 + col, params.n - 1u) * row_of_w, it), it);
            codes_b[2u * t * LDB + col] = kept(item.lo);
            codes_b[(2u * t + 1u) * LDB + col] = kept(item.hi);
            more_b[t * BN + col] = {{more}};
        }
        workgroupBarrier();
        for (var t = 0u; t < DEPTH; t++) {
{{multiply}}
        }
        workgroupBarrier();
    }
{{store}}
}
