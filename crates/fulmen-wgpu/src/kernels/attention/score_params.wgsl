//! The last members of `Params` in the attention kernels, tiled or not, with the rule of the scores
//! (`scores.wgsl`).
#if window
    window: u32,
#endif
#if chunked
    attention_chunk: u32,
#endif
#if scales && softcap
    softcap: f32,
#endif
#if scales && temperature
    temperature_length: u32,
    temperature_beta: f32,
#endif
