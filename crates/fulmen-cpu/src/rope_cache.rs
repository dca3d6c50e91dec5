//! Caches the RoPE angles of the last call: all layers of a step rotate by the same positions.

use fulmen_core::RopeSpec;

use crate::kernels::rope::{Angles, Rope};
use crate::threads::Pool;

#[derive(Default)]
pub(crate) struct RopeCache(Option<Entry>);

struct Entry {
    spec: RopeSpec,
    factors: Option<Vec<f32>>,
    rope: Rope,
    positions: Vec<u32>,
    angles: Angles,
}

impl RopeCache {
    /// The angles of these positions, recomputed only if they changed.
    pub(crate) fn angles(
        &mut self,
        pool: &Pool,
        spec: RopeSpec,
        factors: Option<&[f32]>,
        positions: &[u32],
    ) -> &Angles {
        let same = |entry: &Entry| entry.spec == spec && entry.factors.as_deref() == factors;
        let entry = match self.0.take().filter(same) {
            Some(entry) if entry.positions == positions => entry,
            Some(mut entry) => {
                entry.rope.refill(pool, positions, &mut entry.angles);
                entry.positions.clear();
                entry.positions.extend_from_slice(positions);
                entry
            }
            None => {
                let rope = Rope::new(spec, factors);
                let angles = rope.angles(pool, positions);
                let (factors, positions) = (factors.map(<[f32]>::to_vec), positions.to_vec());
                Entry { spec, factors, rope, positions, angles }
            }
        };
        &self.0.insert(entry).angles
    }
}
