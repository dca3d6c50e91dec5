//! The second launch of few rows: the parts of each head's context become one, and, where they are asked for, codes.

use super::{
    OP, read,
    step::{LEAST, Layout, MOST_CHUNKS},
};
use crate::kernel::Caps;
use crate::kernels::{
    KernelError, Plan,
    bind::{Bind, invalid},
    elementwise::Helper,
    matmul::text::lines,
    plan::threads,
    qmatmul::{Q8_BLOCK, q8_block_place},
};

/// Parts that a thread loads at once.
const EARLY: u32 = 8;

impl Layout<'_> {
    /// Text that makes codes of what `values` holds of a head: a thread takes 32 values.
    fn codes(&self) -> String {
        let (n_heads, items) = (self.shape.heads.n_heads, self.units / 8);
        let to = q8_block_place(self.shape.heads.q_width(), &format!("number / {n_heads}u"), "it");
        let eight = (0..8).map(|i| format!("values[thread * 8u + {i}u]")).collect::<Vec<_>>().join(", ");
        format!(
            "    workgroupBarrier();\n    if (thread < {items}u) {{\n        \
             let it = number % {n_heads}u * {items}u + thread;\n        put_q8_block({to}, {eight});\n    }}\n"
        )
    }

    pub(super) fn combine(
        &self,
        plan: &mut Plan,
        bind: Bind<'_>,
        heads: u64,
        codes: bool,
        caps: &Caps,
    ) -> Result<(), KernelError> {
        let Self { shape, units, across, .. } = *self;
        let threads = threads(128, caps).max(across);
        let groups_word = u32::try_from(heads).map_err(|_| invalid(OP, "more than 2^32 heads"))?;
        let mut functions = [&*read::places(shape, false), Helper::Nan.text(), Helper::Exp.text()].concat();
        let (mut keep, mut make_codes) = (String::new(), String::new());
        if codes {
            functions += Q8_BLOCK;
            keep += "        values[thread] = result;\n";
            make_codes = self.codes();
        }
        if self.fresh.as_ref().is_some_and(|fresh| fresh.turned) {
            let at = format!("number * {units}u + thread");
            keep += &format!("        if (seen > 0u) {{ q_out[{at}] = turned[{at}]; }}\n");
        }
        let splits = threads / across;
        let early = lines(EARLY, |i| {
            let part = format!("at + min(split + {}u, last)", i * splits);
            format!("    let early{i} = parts[({part}) * {units}u + unit];")
        });
        let add_early = lines(EARLY, |i| {
            let c = format!("split + {}u", i * splits);
            format!("    if ({c} < used) {{ sum += factors[{c}] * early{i}; }}")
        });
        let mut params = read::params(shape).to_vec();
        params.extend([self.chunks, groups_word]);
        bind.launch(
            plan,
            include_str!("combine.wgsl"),
            &[
                ("val", read::values(shape)),
                ("functions", &functions),
                ("n_heads", &shape.heads.n_heads.to_string()),
                ("across", &across.to_string()),
                ("units", &units.to_string()),
                ("early", &early),
                ("add_early", &add_early),
                ("keep", &keep),
                ("make_codes", &make_codes),
                ("early_parts", &(EARLY * splits).to_string()),
                ("splits", &splits.to_string()),
                ("quads", &(MOST_CHUNKS / 4).to_string()),
                ("most", &MOST_CHUNKS.to_string()),
                ("least", &LEAST.to_string()),
                ("threads", &threads.to_string()),
            ],
            params,
            heads,
        )
    }
}
