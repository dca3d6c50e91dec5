//! Bindings and preprocessor values that all attention kernels share: queries, keys, values and positions.

use fulmen_core::{DType, KV_PAGE, Scores};

use super::{AttentionShape, KvInput, OP};
use crate::kernels::{
    KernelError, Role,
    bind::{KernelBindings, invalid},
    fault,
    preprocess::{Value, values},
};

impl AttentionShape {
    /// Elements of a head that are loaded at once: four where the head size allows it, else one.
    pub(super) fn width(&self) -> u32 {
        if self.heads.head_dim.is_multiple_of(4) { 4 } else { 1 }
    }

    /// Vectors of [`width`](Self::width) elements per head.
    pub(super) fn vecs(&self) -> u32 {
        self.heads.head_dim / self.width()
    }

    /// The WGSL type of such a vector.
    pub(super) fn val(&self) -> &'static str {
        if self.width() == 4 { "vec4<f32>" } else { "f32" }
    }

    /// The type of keys and values.
    pub(super) fn kv_type(&self) -> DType {
        match self.kv {
            KvInput::Rows => DType::F32,
            KvInput::Cache { cache, .. } => cache.dtype,
        }
    }

    /// Whether rows have sequence numbers.
    pub(super) fn sequences(&self) -> bool {
        matches!(self.kv, KvInput::Cache { sequences: true, .. })
    }

    /// Binds queries, keys and values.
    pub(super) fn bind_qkv(&self, bind: &mut KernelBindings<'_>) -> Result<(), KernelError> {
        let element = match (self.kv_type(), self.width()) {
            (DType::F32, 4) => "vec4<f32>",
            (DType::F32, _) => "f32",
            (DType::F16, 4) => "vec2<u32>",
            _ => "u32",
        };
        bind.read("q", Role::Input(0), self.val(), self.q_bytes)?;
        bind.read("k", Role::Input(1), element, self.kv_bytes)?;
        bind.read("v", Role::Input(2), element, self.kv_bytes)
    }

    /// Binds the positions and sequences of the rows and, for kernels that read keys, the page table and
    /// the faults.
    pub(super) fn bind_positions(
        &self,
        bind: &mut KernelBindings<'_>,
        faults: bool,
    ) -> Result<(), KernelError> {
        if self.kv == KvInput::Rows {
            return Ok(());
        }
        let bytes = u64::from(self.m) * 4;
        bind.read("positions", Role::Input(3), "u32", bytes)?;
        if self.sequences() {
            bind.read("sequences", Role::Input(4), "u32", bytes)?;
        }
        if faults {
            if let KvInput::Cache { cache, .. } = self.kv {
                bind.read("pages", Role::Input(10), "u32", cache.table_bytes())?;
            }
            bind.write("fault", Role::Output(1), fault::ELEMENT, fault::FAULT_BYTES)?;
        }
        Ok(())
    }

    /// The values that `visible_keys.wgsl`, `kv_reader.wgsl` and the kernels themselves take.
    pub(super) fn values(&self, faults: bool) -> Vec<(&'static str, Value)> {
        let kv_type = match self.kv_type() {
            DType::F32 => "f32",
            DType::F16 => "f16",
            _ => "q8_0",
        };
        let over_cache = self.kv != KvInput::Rows;
        // From the key row of one position to that of the next.
        let row_stride = if over_cache { 1 } else { self.heads.n_kv_heads };
        values![
            over_cache,
            faults,
            kv_type,
            row_stride,
            sequences: self.sequences(),
            n_heads: self.heads.n_heads,
            n_kv_heads: self.heads.n_kv_heads,
            head_dim: self.heads.head_dim,
            group: self.group,
            width: self.width(),
            vecs: self.vecs(),
            val: self.val(),
            page: KV_PAGE,
            scales: faults,
            window: self.scores.window.is_some(),
            chunked: self.scores.chunk.is_some(),
            softcap: self.scores.softcap.is_some(),
            temperature: self.scores.temperature.is_some(),
            sinks: self.scores.sinks.is_some(),
        ]
        .to_vec()
    }

    /// The first words of `Params`: capacity, and number of sequences and pages.
    pub(super) fn params(&self) -> [u32; 3] {
        match self.kv {
            KvInput::Rows => [self.m, 1, 1],
            KvInput::Cache { cache, .. } => [cache.capacity(), cache.n_seqs, cache.n_pages],
        }
    }

    /// The last words of `Params` in kernels that compute scores, after the scale.
    pub(super) fn score_params(&self) -> impl Iterator<Item = u32> {
        let Scores { window, chunk, softcap, temperature, .. } = self.scores;
        let temperature = temperature.map(|temperature| [temperature.length, temperature.beta.to_bits()]);
        let words = window.into_iter().chain(chunk).chain(softcap.map(f32::to_bits));
        words.chain(temperature.into_iter().flatten())
    }

    /// Binds the sinks, if there are some.
    pub(super) fn bind_sinks(&self, bind: &mut KernelBindings<'_>) -> Result<(), KernelError> {
        match self.scores.sinks {
            Some(()) => bind.read("sinks", Role::Input(11), "f32", u64::from(self.heads.n_heads) * 4),
            None => Ok(()),
        }
    }

    /// The error for a head size that a kernel does not support.
    pub(super) fn unsupported_head_dim(&self) -> KernelError {
        invalid(OP, format!("heads of {} elements are too wide", self.heads.head_dim))
    }
}
