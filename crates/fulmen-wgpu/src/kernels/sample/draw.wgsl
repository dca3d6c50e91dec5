//! Sampling, launch 3 of 3 (histogram search, tree reductions): draws the token of each row with
//! temperature, top-k, top-p and min-p, without sorting the row.
//!
//! **Work partition.** One workgroup per row; threads stride over the logits and the histogram bins.
//!
//! **Algorithm.** A position in the sorted order is where the running count (top-k) or the running
//! weight (top-p, the random draw) reaches a goal. It is found in the histogram first (prefix sum over
//! the bins), and then among the candidates of one bin: if they are at most `threads`, they are
//! gathered into a window and sorted (bitonic sort); otherwise they are counted into finer bins until
//! they fit. Weights are 64-bit fixed-point numbers, so the result is exact and independent of the
//! device.
//!
//! **Bindings.** `logits` [m][n] f32; `tokens` [m][n], if columns are not tokens; `states` [m] of 8 words
//! (`SampleState`), whose step counter goes up; `keys` [m][parts] of launch 1; `bins` [m][bins] of launch 2,
//! replaced by their running sums; `out` [m] tokens; `fault`.
//!
//! Loops of the form `for (var once = condition; once; once = false)` are conditionals that contain
//! barriers: the shader compiler rejects a barrier inside an `if` whose condition it cannot prove
//! uniform.
//!
//! **Preconditions.** An invalid state is reported.
//!
//! **Bound** by latency: a handful of passes over the row with one workgroup; not measured.
struct Params {
    n: u32,
    rows: u32,
    keys: u32,
}

alias EwF = f32;
alias EwI = i32;
alias EwU = u32;
alias EwB = bool;
#include "fault.wgsl"
#include "elementwise/nan.wgsl"
#include "elementwise/exp.wgsl"
#include "sample/weigh.wgsl"
#include "argmax_key.wgsl"
const THREADS = {{threads}}u;
const BINS = {{bins}}u;
// Bins per thread.
const OWN = {{own}}u;
const COUNT = 0u;
const MASS = 1u;
// The token of a row without a finite maximum.
const NO_TOKEN = 0xffffffffu;

// Consecutive candidates of the sorted order, with the running mass at each. A candidate is a 64-bit
// number that decreases in that order: its key, then its inverted index.
var<workgroup> window: array<vec2<u32>, {{threads}}>;
var<workgroup> window_mass: array<vec2<u32>, {{threads}}>;
var<workgroup> fine_count: array<atomic<u32>, {{threads}}>;
var<workgroup> fine_low: array<atomic<u32>, {{threads}}>;
var<workgroup> fine_high: array<atomic<u32>, {{threads}}>;
var<workgroup> scan_count: array<u32, {{threads}}>;
var<workgroup> scan_mass: array<vec2<u32>, {{threads}}>;
var<workgroup> found: u32;
var<workgroup> taken: atomic<u32>;

var<private> me: u32;
var<private> row_at: u32;
var<private> bins_at: u32;
var<private> top_key: u32;
var<private> top: f32;
var<private> inverse: f32;
// Candidates in the window, and the running count and mass before it.
var<private> windowed: u32;
var<private> before_count: u32;
var<private> before_mass: vec2<u32>;
// Running count and mass before the bin that was found last, and its number of candidates.
var<private> ran_count: u32;
var<private> ran_mass: vec2<u32>;
var<private> bin_count: u32;
// A range of candidates: a range of bins, and a range of numbers.
var<private> first_bin: u32;
var<private> last_bin: u32;
var<private> lowest: vec2<u32>;
var<private> highest: vec2<u32>;
// The position that was found: its candidate, and the running mass including it.
var<private> place: vec2<u32>;
var<private> place_mass: vec2<u32>;

fn sub64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn shifted_right(a: vec2<u32>, by: u32) -> vec2<u32> {
    if (by == 0u) { return a; }
    if (by >= 32u) { return vec2<u32>(a.y >> (by - 32u), 0u); }
    return vec2<u32>((a.x >> by) | (a.y << (32u - by)), a.y >> by);
}

fn power64(by: u32) -> vec2<u32> {
    if (by >= 32u) { return vec2<u32>(0u, 1u << (by - 32u)); }
    return vec2<u32>(1u << by, 0u);
}

// a x b as 64 bits.
fn wide(a: u32, b: u32) -> vec2<u32> {
    let al = a & 0xffffu;
    let ah = a >> 16u;
    let bl = b & 0xffffu;
    let bh = b >> 16u;
    let one = al * bh;
    let two = ah * bl;
    let middle = ((al * bl) >> 16u) + (one & 0xffffu) + (two & 0xffffu);
    return vec2<u32>(a * b, ah * bh + (one >> 16u) + (two >> 16u) + (middle >> 16u));
}

// a b / 2^by, for 0 < by < 32, if it fits 64 bits.
fn scaled64(a: vec2<u32>, b: u32, by: u32) -> vec2<u32> {
    let low = wide(a.x, b);
    let high = add64(wide(a.y, b), vec2<u32>(low.y, 0u));
    return vec2<u32>((low.x >> by) | (high.x << (32u - by)), (high.x >> by) | (high.y << (32u - by)));
}

// Inclusive prefix sums over the threads.
fn scan(count: u32, mass: vec2<u32>) {
    scan_count[me] = count;
    scan_mass[me] = mass;
    workgroupBarrier();
    for (var by = 1u; by < THREADS; by *= 2u) {
        var c = 0u;
        var m = vec2<u32>(0u, 0u);
        if (me >= by) {
            c = scan_count[me - by];
            m = scan_mass[me - by];
        }
        workgroupBarrier();
        scan_count[me] += c;
        scan_mass[me] = add64(scan_mass[me], m);
        workgroupBarrier();
    }
}

// The largest number of all threads: a tree reduction.
fn largest64(own: vec2<u32>) -> vec2<u32> {
    scan_mass[me] = own;
    workgroupBarrier();
    for (var width = THREADS / 2u; width > 0u; width /= 2u) {
        if (me < width && less64(scan_mass[me], scan_mass[me + width])) {
            scan_mass[me] = scan_mass[me + width];
        }
        workgroupBarrier();
    }
    let result = scan_mass[0];
    workgroupBarrier();
    return result;
}

fn hist_count(bin: u32) -> u32 { return bins[bins_at + bin * 3u]; }
fn hist_mass(bin: u32) -> vec2<u32> {
    return vec2<u32>(bins[bins_at + bin * 3u + 1u], bins[bins_at + bin * 3u + 2u]);
}
fn fine_mass(bin: u32) -> vec2<u32> {
    return vec2<u32>(atomicLoad(&fine_low[bin]), atomicLoad(&fine_high[bin]));
}

// Replaces the histogram by its prefix sums.
fn prefix_sum_histogram() {
    var count = 0u;
    var mass = vec2<u32>(0u, 0u);
    for (var j = 0u; j < OWN; j += 1u) {
        count += hist_count(me * OWN + j);
        mass = add64(mass, hist_mass(me * OWN + j));
    }
    scan(count, mass);
    count = scan_count[me] - count;
    mass = sub64(scan_mass[me], mass);
    for (var j = 0u; j < OWN; j += 1u) {
        let bin = me * OWN + j;
        count += hist_count(bin);
        mass = add64(mass, hist_mass(bin));
        bins[bins_at + bin * 3u] = count;
        bins[bins_at + bin * 3u + 1u] = mass.x;
        bins[bins_at + bin * 3u + 2u] = mass.y;
    }
    storageBarrier();
    workgroupBarrier();
}

fn reached(measure: u32, count: u32, mass: vec2<u32>, goal: vec2<u32>) -> bool {
    if (measure == COUNT) { return count >= goal.x; }
    return !less64(mass, goal);
}

// The first bin of the histogram at which the measure reaches the goal.
fn find_bin(measure: u32, goal: vec2<u32>) -> u32 {
    if (me == 0u) { found = BINS - 1u; }
    workgroupBarrier();
    for (var j = 0u; j < OWN; j += 1u) {
        let bin = me * OWN + j;
        if (reached(measure, hist_count(bin), hist_mass(bin), goal)) {
            if (bin == 0u || !reached(measure, hist_count(bin - 1u), hist_mass(bin - 1u), goal)) {
                found = bin;
            }
        }
    }
    workgroupBarrier();
    let bin = found;
    workgroupBarrier();
    ran_count = 0u;
    ran_mass = vec2<u32>(0u, 0u);
    if (bin > 0u) {
        ran_count = hist_count(bin - 1u);
        ran_mass = hist_mass(bin - 1u);
    }
    bin_count = hist_count(bin) - ran_count;
    return bin;
}

// The same in the finer bins, whose sums include everything before them.
fn find_fine(measure: u32, goal: vec2<u32>) -> u32 {
    if (me == 0u) { found = THREADS - 1u; }
    workgroupBarrier();
    if (reached(measure, atomicLoad(&fine_count[me]), fine_mass(me), goal)) {
        if (me == 0u || !reached(measure, atomicLoad(&fine_count[me - 1u]), fine_mass(me - 1u), goal)) {
            found = me;
        }
    }
    workgroupBarrier();
    let bin = found;
    workgroupBarrier();
    if (bin > 0u) {
        ran_count = atomicLoad(&fine_count[bin - 1u]);
        ran_mass = fine_mass(bin - 1u);
    }
    bin_count = atomicLoad(&fine_count[bin]) - ran_count;
    workgroupBarrier();
    return bin;
}

struct Candidate {
    number: vec2<u32>,
    distance: f32,
    bin: u32,
    // It is a candidate in the current range.
    there: bool,
}

fn candidate(value: f32, i: u32) -> Candidate {
    let key = key_of(value, i).x;
    let distance = distance_of(key, value, top_key, top, inverse);
    let bin = bin_of(distance);
    let number = vec2<u32>(~i, key);
    let inside = bin >= first_bin && bin <= last_bin && !less64(number, lowest) && !less64(highest, number);
    return Candidate(number, distance, bin, i < params.n && key > 0u && inside);
}

fn logit(i: u32) -> f32 { return logits[row_at + min(i, params.n - 1u)]; }

fn mass_at(bin: u32, distance: f32) -> vec2<u32> {
    if (bin == BINS - 1u) { return vec2<u32>(0u, 0u); }
    return mass_of(distance);
}

//! Visits each candidate of the row, `unroll` logits in flight per thread. `take` says what for: `gather` it
//! into the window, narrow the `range`, count it into `finer_bins`, or add up the `mass_above` a weight.
#macro each_candidate(take)
    for (var i = me; i < params.n; i += {{unroll}}u * THREADS) {
#for j in 0..unroll
        let x{{j}} = logit(i + {{j}}u * THREADS);
#endfor
#for j in 0..unroll
        {
            let c = candidate(x{{j}}, i + {{j}}u * THREADS);
            if (c.there) {
#if take == "gather"
                let to = atomicAdd(&taken, 1u);
                if (to < THREADS) { window[to] = c.number; }
#elif take == "range"
                if (less64(large, c.number)) { large = c.number; }
                if (less64(small, ~c.number)) { small = ~c.number; }
#elif take == "finer_bins"
                let bin = shifted_right(sub64(from_top, c.number), shift).x;
                let mass = mass_at(c.bin, c.distance);
                atomicAdd(&fine_count[bin], 1u);
                let before = atomicAdd(&fine_low[bin], mass.x);
                atomicAdd(&fine_high[bin], mass.y + select(0u, 1u, before + mass.x < before));
#elif take == "mass_above"
                if (ew_exp(-c.distance) >= least) { mass = add64(mass, mass_at(c.bin, c.distance)); }
#endif
            }
        }
#endfor
    }
#endmacro

// Gathers and sorts the range, which has at most one candidate per thread, into the window.
fn gather(count: u32) {
    if (me == 0u) { atomicStore(&taken, 0u); }
    window[me] = vec2<u32>(0u, 0u);
    workgroupBarrier();
#expand each_candidate("gather")
    workgroupBarrier();
    // Bitonic sort, the largest first.
    for (var run = 2u; run <= THREADS; run *= 2u) {
        for (var apart = run / 2u; apart > 0u; apart /= 2u) {
            let other = me ^ apart;
            if (other > me) {
                let a = window[me];
                let b = window[other];
                let falling = (me & run) == 0u;
                if ((falling && less64(a, b)) || (!falling && less64(b, a))) {
                    window[me] = b;
                    window[other] = a;
                }
            }
            workgroupBarrier();
        }
    }
    var mass = vec2<u32>(0u, 0u);
    if (me < count && window[me].y > 0u) {
        let key = window[me].y;
        let distance = distance_of(key, value_of(key), top_key, top, inverse);
        mass = mass_at(bin_of(distance), distance);
    }
    scan(1u, mass);
    window_mass[me] = add64(ran_mass, scan_mass[me]);
    windowed = min(count, atomicLoad(&taken));
    before_count = ran_count;
    before_mass = ran_mass;
    workgroupBarrier();
}

// Narrows the range to its actual candidates, and counts them into finer bins of 2^shift numbers, the
// largest first.
fn count_finer() -> u32 {
    var large = vec2<u32>(0u, 0u);
    var small = vec2<u32>(0u, 0u);
#expand each_candidate("range")
    highest = largest64(large);
    lowest = ~largest64(small);
    let span = sub64(highest, lowest);
    var shift = 0u;
    while (!less64(shifted_right(span, shift), vec2<u32>(THREADS, 0u))) { shift += 1u; }
    atomicStore(&fine_count[me], 0u);
    atomicStore(&fine_low[me], 0u);
    atomicStore(&fine_high[me], 0u);
    workgroupBarrier();
    let from_top = highest;
#expand each_candidate("finer_bins")
    workgroupBarrier();
    scan(atomicLoad(&fine_count[me]), fine_mass(me));
    let mass = add64(ran_mass, scan_mass[me]);
    atomicStore(&fine_count[me], ran_count + scan_count[me]);
    atomicStore(&fine_low[me], mass.x);
    atomicStore(&fine_high[me], mass.y);
    workgroupBarrier();
    return shift;
}

fn all_candidates(from_bin: u32, to_bin: u32) {
    first_bin = from_bin;
    last_bin = to_bin;
    lowest = vec2<u32>(0u, 0u);
    highest = vec2<u32>(0xffffffffu, 0xffffffffu);
}

fn in_window(measure: u32, goal: vec2<u32>) -> bool {
    if (windowed == 0u) { return false; }
    if (measure == COUNT) { return before_count < goal.x && goal.x - before_count <= windowed; }
    return less64(before_mass, goal) && !less64(window_mass[windowed - 1u], goal);
}

// Finds the position at which the measure reaches the goal (at least 1).
fn find(measure: u32, goal: vec2<u32>) {
    for (var search = !in_window(measure, goal); search; search = false) {
        let bin = find_bin(measure, goal);
        all_candidates(bin, bin);
        while (bin_count > THREADS) {
            let shift = count_finer();
            let size = power64(shift);
            let fine = find_fine(measure, goal);
            // highest -= fine * 2^shift.
            let skip = wide(fine, size.x) + vec2<u32>(0u, fine * size.y);
            highest = sub64(highest, skip);
            if (!less64(sub64(highest, lowest), size)) {
                lowest = add64(sub64(highest, size), vec2<u32>(1u, 0u));
            }
        }
        gather(bin_count);
    }
    if (me == 0u) { found = max(windowed, 1u) - 1u; }
    workgroupBarrier();
    if (measure == COUNT) {
        if (me == 0u) { found = min(goal.x - before_count - 1u, max(windowed, 1u) - 1u); }
    } else if (me < windowed && !less64(window_mass[me], goal)) {
        if (me == 0u || less64(window_mass[max(me, 1u) - 1u], goal)) { found = me; }
    }
    workgroupBarrier();
    place = window[found];
    place_mass = window_mass[found];
    workgroupBarrier();
}

// The total mass of the candidates whose weight is at least `least`.
fn mass_above(least: f32) -> vec2<u32> {
    all_candidates(0u, BINS - 1u);
    var mass = vec2<u32>(0u, 0u);
#expand each_candidate("mass_above")
    scan(0u, mass);
    let result = scan_mass[THREADS - 1u];
    workgroupBarrier();
    return result;
}

// The first word of the PCG4D hash of the seed.
fn random_word(seed: vec4<u32>) -> u32 {
    var v = seed * 1664525u + 1013904223u;
    for (var round = 0u; round < 2u; round += 1u) {
        v.x += v.y * v.w;
        v.y += v.z * v.x;
        v.z += v.x * v.y;
        v.w += v.y * v.z;
        if (round == 0u) { v ^= v >> vec4<u32>(16u); }
    }
    return v.x;
}

// Draws a token: steps 2 to 6 of the rule in `fulmen_core::sampling`.
fn draw(at: u32) -> u32 {
    prefix_sum_histogram();
    let top_k = states[at + 1u];
    let top_p = bitcast<f32>(states[at + 2u]);
    let min_p = bitcast<f32>(states[at + 3u]);
    let all = hist_count(BINS - 1u);
    var total = hist_mass(BINS - 1u);
    for (var cut = top_k > 0u && top_k < all; cut; cut = false) {
        let last = find_bin(COUNT, vec2<u32>(top_k, 0u));
        // Usually few candidates are kept; then one window serves all following searches.
        let few = ran_count + bin_count;
        for (var all_fit = few <= THREADS; all_fit; all_fit = false) {
            all_candidates(0u, last);
            ran_count = 0u;
            ran_mass = vec2<u32>(0u, 0u);
            gather(few);
        }
        find(COUNT, vec2<u32>(top_k, 0u));
        total = place_mass;
    }
    var kept = total;
    for (var cut = min_p > 0.0; cut; cut = false) {
        let above = mass_above(min_p);
        if (less64(above, kept)) { kept = above; }
    }
    for (var cut = top_p < 1.0; cut; cut = false) {
        var bound = add64(scaled64(total, u32(top_p * 2147483648.0), 31u), vec2<u32>(1u, 0u));
        if (less64(total, bound)) { bound = total; }
        find(MASS, bound);
        if (less64(place_mass, kept)) { kept = place_mass; }
    }
    let word = random_word(vec4<u32>(states[at + 4u], states[at + 5u], states[at + 6u], states[at + 7u]));
    find(MASS, add64(scaled64(kept, word >> 8u, 24u), vec2<u32>(1u, 0u)));
    return ~place.x;
}

// The fault of a state: code (0 if there is none) and value.
fn fault_of(at: u32) -> vec2<u32> {
    let temperature = states[at];
    if (temperature != 0x80000000u && temperature >= 0x7f800000u) {
        return vec2<u32>(FAULT_TEMPERATURE, temperature);
    }
    let top_p = states[at + 2u];
    if (top_p != 0x80000000u && top_p > 0x7f800000u) { return vec2<u32>(FAULT_TOP_P, top_p); }
    let min_p = states[at + 3u];
    if (min_p != 0x80000000u && min_p > 0x3f800000u) { return vec2<u32>(FAULT_MIN_P, min_p); }
    return vec2<u32>(0u, 0u);
}

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.x + grid.x * (group.y + grid.y * group.z);
    if (row >= params.rows) { return; }
    me = thread;
    let at = row * 8u;
    row_at = row * params.n;
    bins_at = row * (BINS * 3u);
    windowed = 0u;
    let invalid_state = fault_of(at);
    if (invalid_state.x != 0u && thread == 0u) { report(invalid_state.x, row, invalid_state.y, 0u); }
    var own = vec2<u32>(0u, 0u);
    for (var i = thread; i < params.keys; i += THREADS) {
        let key = keys[row * params.keys + i];
        let number = vec2<u32>(~key.y, key.x);
        if (key.x > 0u && less64(own, number)) { own = number; }
    }
    let best = largest64(own);
    top_key = best.y;
    top = value_of(top_key);
    let temperature = states[at];
    inverse = 1.0 / bitcast<f32>(temperature);
    // Rows of NaN and -inf have the key 0; 0xff800000 is the key of +inf.
    let finite = best.y > 0u && best.y < 0xff800000u;
    var token = select(NO_TOKEN, ~best.x, finite);
    for (var chance = invalid_state.x == 0u && finite && draws(temperature); chance; chance = false) {
        token = draw(at);
    }
    if (thread == 0u && invalid_state.x == 0u) {
#if tokens
        if (token != NO_TOKEN) { token = tokens[row_at + token]; }
#endif
        out[row] = token;
        states[at + 6u] += 1u;
    }
}
