//! Causal grouped-query attention, among rows and over a cache.
//!
//! - [`Kind::Step`]: few rows, or heads of any size. A workgroup takes the query heads of a row that share keys, over a part
//!   of what the row sees; a second launch puts the parts together, and can give them as codes for the product that comes next.
//!   For one row the first launch can also be norm per head, rotation and store ([`rope_store_attention`]).
//! - [`Kind::Tiles`]: many rows. A workgroup takes a head of 64 rows, and reads keys and values once for all of them.
//! - [`Kind::Units`]: the same on matrix units, in 16 bits.

mod combine;
mod fresh;
mod read;
mod step;
mod tiles;
mod units;

use fulmen_core::Heads;

use self::fresh::Fresh;
use super::{
    KernelError, Plan,
    bind::{fits, invalid},
    kv::{Cache, KvStore, RopeStore},
    matmul::FragmentOps,
    plan::product,
};
use crate::kernel::Caps;

const OP: &str = "attention";

/// Where keys and values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Rows of the same batch, `[m, n_kv_heads · head_dim]` in f32: row `r` sees rows 0 to `r`.
    Rows,
    /// A cache: row `r` sees positions 0 to `positions[r]` of its sequence.
    Cache {
        /// The cache.
        cache: Cache,
        /// Rows have sequence numbers; otherwise all are of sequence 0.
        sequences: bool,
    },
}

/// Rows of queries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Rows.
    pub m: u32,
    /// Heads.
    pub heads: Heads,
    /// Multiplies the scores.
    pub scale: f32,
    /// Keys and values.
    pub source: Source,
}

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The context of each row in parts.
    Step,
    /// Tiles of 64 rows; for heads of a multiple of 32 elements, up to 256.
    Tiles,
    /// Tiles of 64 rows, whose products are squares of 16 by 16; for caches of f16 and `Q8_0` and heads of a multiple of 16
    /// elements, up to 128.
    Units(FragmentOps),
}

/// Attention of each row's queries to the keys that it sees.
///
/// Input 0 is the queries, `[m, n_heads · head_dim]`; inputs 1 and 2 are the keys and values, rows or the whole
/// cache; over a cache, input 3 is the `m` positions and input 4 (if any) the `m` sequence numbers. Output 0 is as input
/// 0; over a cache output 1 is the [record of faults](super::fault). A row without a place in the cache is reported and
/// gives zeros, as does one whose scores are all -inf.
///
/// # Errors
/// [`KernelError`] where the heads do not fit the cache's type, or something is larger than a binding.
pub fn attention(spec: &Attention, caps: &Caps) -> Result<Plan, KernelError> {
    let shape = Shape::new(spec, caps)?;
    attention_by(many(&shape, caps).unwrap_or(Kind::Step), spec, caps)
}

/// The kernel for many rows, where they are many and there is one.
fn many(shape: &Shape, caps: &Caps) -> Option<Kind> {
    let kinds = [
        (
            Kind::Units(FragmentOps::CooperativeMatrix),
            units::fits(shape, FragmentOps::CooperativeMatrix, caps),
        ),
        (Kind::Tiles, tiles::fits(shape, caps)),
    ];
    let kind = kinds.into_iter().find_map(|(kind, fits)| fits.then_some(kind));
    kind.filter(|_| tiles::worth(shape))
}

/// As [`attention`], and its last launch gives the result also as codes for a product: output 2, as many bytes as
/// [`q8_bytes`](super::qmatmul::q8_bytes) says. The codes are those that a launch of their own would make. `None` where
/// the last launch cannot make them.
///
/// # Errors
/// As [`attention`].
pub fn attention_and_codes(spec: &Attention, caps: &Caps) -> Result<Option<Plan>, KernelError> {
    let shape = Shape::new(spec, caps)?;
    let none = spec.m == 0 || spec.heads.n_heads == 0;
    if none || many(&shape, caps).is_some() {
        return Ok(None);
    }
    step::plan_with_codes(&shape, caps)
}

/// Norm per head, rotation and store of one row, and attention over the cache after that, in two launches. `None` where
/// there are no kernels for that: then it is [`rope_store`](super::kv::rope_store), and [`attention`] of its result.
///
/// Input 0 is the queries, 3 the position, 4 (if any) the sequence number; inputs 5 and 6 are key and value of the row, 7 and 8
/// (if any) the gains of the queries' and the key's norm, 9 (if any) the frequency factors. Output 0 is the result, 1 the
/// [record of faults](super::fault), 2 the result as codes, as of [`attention_and_codes`], where heads are multiples of 32
/// elements; 3 and 4 are the cache. With `turned`, output 5 takes the turned queries, and may be the memory of input 0. A row
/// without a place is reported, stores nothing, turns nothing and gives zeros.
///
/// # Errors
/// As [`attention`], and where the rotation does not fit the heads.
pub fn rope_store_attention(
    spec: &RopeStore,
    scale: f32,
    turned: bool,
    caps: &Caps,
) -> Result<Option<Plan>, KernelError> {
    let KvStore { m, heads, cache, sequences } = spec.store;
    let source = Source::Cache { cache, sequences };
    let shape = Shape::new(&Attention { m, heads, scale, source }, caps)?;
    if m != 1 || heads.n_heads == 0 {
        return Ok(None);
    }
    step::plan_fresh(&shape, Fresh { spec, turned }, caps)
}

/// As [`attention`], by the kernel that is asked for.
///
/// # Errors
/// As [`attention`], and where the kernel does not take such heads.
pub fn attention_by(kind: Kind, spec: &Attention, caps: &Caps) -> Result<Plan, KernelError> {
    let shape = Shape::new(spec, caps)?;
    if spec.m == 0 || spec.heads.n_heads == 0 {
        return Ok(Plan::default());
    }
    match kind {
        Kind::Step => step::plan(&shape, caps),
        Kind::Tiles => tiles::plan(&shape, caps),
        Kind::Units(squares) => units::plan(&shape, squares, caps),
    }
}

/// The sizes of the work, checked.
struct Shape {
    m: u32,
    heads: Heads,
    scale: f32,
    source: Source,
    /// Query heads that share keys.
    group: u32,
    /// Bytes of the queries, and of the output.
    q_bytes: u64,
    /// Bytes of the keys, and of the values.
    kv_bytes: u64,
    /// The most that a row sees.
    capacity: u32,
}

impl Shape {
    fn new(spec: &Attention, caps: &Caps) -> Result<Self, KernelError> {
        let Attention { m, heads, scale, source } = *spec;
        let Heads { n_heads, n_kv_heads, head_dim } = heads;
        let (kv_bytes, capacity) = match source {
            Source::Cache { cache, .. } => (cache.bytes(OP, heads, caps)?, cache.capacity),
            Source::Rows => {
                if n_kv_heads == 0 || !n_heads.is_multiple_of(n_kv_heads) || head_dim == 0 {
                    let reason =
                        format!("{n_heads} heads of {head_dim} cannot share {n_kv_heads} heads of keys");
                    return Err(invalid(OP, reason));
                }
                (product(OP, "the keys", &[m.into(), n_kv_heads.into(), head_dim.into(), 4])?, m)
            }
        };
        let q_bytes = product(OP, "the queries", &[m.into(), n_heads.into(), head_dim.into(), 4])?;
        fits(OP, "the queries", q_bytes, caps)?;
        let group = n_heads / n_kv_heads;
        Ok(Self { m, heads, scale, source, group, q_bytes, kv_bytes, capacity })
    }

    fn sequences(&self) -> bool {
        matches!(self.source, Source::Cache { sequences: true, .. })
    }
}
