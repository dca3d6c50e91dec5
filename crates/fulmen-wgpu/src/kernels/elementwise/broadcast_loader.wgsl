//! Helper functions of `elementwise/fused.wgsl` for an input that is broadcast: `load_in<n>(i)` returns
//! the 4 elements that belong to output vector `i`, for one thread. `n` is the input's number,
//! `broadcast` how it is laid out:
//!
//! - `scalar`: one element for all;
//! - `row`: one element per column, repeated in every row of `params.n<n>` elements (`row4`: of that
//!   many vectors);
//! - `column`: one element per row (`column4`: rows are whole vectors).
//!
//! `params.at<n>` is the column at which the launch starts, `params.row<n>` and `params.last<n>` bound
//! the elements of a column input. `form` is as in `storage/accessors.wgsl`.
#if broadcast == "row4"
fn load_in{{n}}(i: u32) -> EwF {
    let k = (i + params.at{{n}}) % params.n{{n}};
  #if form == "packed_f16"
    return EwF(unpack2x16float(in{{n}}[k].x), unpack2x16float(in{{n}}[k].y));
  #else
    return EwF(in{{n}}[k]);
  #endif
}
#else
  #if form == "packed_f16"
fn one_in{{n}}(i: u32) -> f32 {
    let w = unpack2x16float(in{{n}}[i >> 1u]);
    return select(w.x, w.y, (i & 1u) == 1u);
}
  #else
fn one_in{{n}}(i: u32) -> f32 { return f32(in{{n}}[i]); }
  #endif
fn load_in{{n}}(i: u32) -> EwF {
  #if broadcast == "scalar"
    return EwF(one_in{{n}}(0u));
  #elif broadcast == "row"
    let n = params.n{{n}};
    let a = (i * 4u + params.at{{n}}) % n;
    let b = select(a + 1u, 0u, a + 1u == n);
    let c = select(b + 1u, 0u, b + 1u == n);
    let d = select(c + 1u, 0u, c + 1u == n);
    return EwF(one_in{{n}}(a), one_in{{n}}(b), one_in{{n}}(c), one_in{{n}}(d));
  #elif broadcast == "column4"
    return EwF(one_in{{n}}(params.row{{n}} + (i + params.at{{n}}) / params.n{{n}}));
  #else
    // Lanes past the end of the range must stay inside the buffer.
    let k = EwU(i * 4u + params.at{{n}}) + EwU(0u, 1u, 2u, 3u);
    let at = min(EwU(params.row{{n}}) + k / params.n{{n}}, EwU(params.last{{n}}));
    return EwF(one_in{{n}}(at.x), one_in{{n}}(at.y), one_in{{n}}(at.z), one_in{{n}}(at.w));
  #endif
}
#endif
