//! Which layers run on which device.

use std::fmt;
use std::ops::Range;

use crate::error::ModelError;

/// Consecutive layers of a model that run on one device. The first stage also embeds the tokens, and the last
/// one computes the results; from one to the next go hidden states. The experts of its first layers may be on
/// the host, which computes them between two segments of the stage's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stage {
    first: u32,
    end: u32,
    /// Layers of the model.
    of: u32,
    /// Layers before this one have their experts on the host.
    host_experts: u32,
}

impl Stage {
    /// All layers of a model.
    pub const fn whole(layers: u32) -> Stage {
        Stage { first: 0, end: layers, of: layers, host_experts: 0 }
    }

    /// The same with the experts of the layers before `end` on the host; 0 for none. Layers without experts
    /// are as they were.
    pub const fn with_experts_on_host(self, end: u32) -> Stage {
        Stage { host_experts: end, ..self }
    }

    /// Whether the host has the experts of a layer, if that layer has some.
    pub fn has_experts_on_host(&self, layer: u32) -> bool {
        self.layers().contains(&layer) && layer < self.host_experts
    }

    /// Whether the host computes the experts of some layers.
    pub fn is_cut(&self) -> bool {
        self.has_experts_on_host(self.first)
    }

    /// Whether it has all layers of the model.
    pub fn has_all_layers(&self) -> bool {
        self.is_first() && self.is_last()
    }

    /// Its layers.
    pub fn layers(&self) -> Range<u32> {
        self.first..self.end
    }

    /// How many layers it has.
    pub fn len(&self) -> u32 {
        self.end - self.first
    }

    /// Whether it has no layers. No stage of a [`Placement`] of a model with layers is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it embeds the tokens.
    pub fn is_first(&self) -> bool {
        self.first == 0
    }

    /// Whether it computes the results.
    pub fn is_last(&self) -> bool {
        self.end == self.of
    }

    /// Fails if it is a stage of a model with another number of layers.
    pub(super) fn check(&self, layers: u32) -> Result<(), ModelError> {
        match self.of == layers {
            true => Ok(()),
            false => Err(ModelError::Option {
                what: "the stage of a graph",
                expected: format!("one of a model with {layers} layers"),
                found: format!("{self} of {}", self.of),
            }),
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.len() {
            1 => write!(f, "layer {}", self.first),
            _ => write!(f, "layers {}–{}", self.first, self.end.saturating_sub(1)),
        }
    }
}

/// The stages of a model in their order: each layer belongs to exactly one.
///
/// ```
/// use fulmen_model::arch::Placement;
///
/// let placement = Placement::split(&[10, 14], 24)?;
/// assert_eq!(placement.stages()[1].layers(), 10..24);
/// assert!(Placement::split(&[10, 10], 24).is_err());
/// # Ok::<(), fulmen_model::ModelError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Placement(Vec<Stage>);

impl Placement {
    /// All layers on one device.
    pub fn whole(layers: u32) -> Placement {
        Placement(vec![Stage::whole(layers)])
    }

    /// Divides the layers of a model: so many for each device, at least one, in the order of computation.
    ///
    /// # Errors
    /// If a device has no layer, or if their sum is not the number of layers.
    pub fn split(counts: &[u32], layers: u32) -> Result<Placement, ModelError> {
        let sum = counts.iter().map(|&count| u64::from(count)).sum::<u64>();
        if counts.contains(&0) || sum != u64::from(layers) {
            return Err(ModelError::Option {
                what: "the layers of each device",
                expected: format!("at least 1 and {layers} together"),
                found: format!("{counts:?}"),
            });
        }
        let mut first = 0;
        let stages = counts.iter().map(|&count| {
            let stage = Stage { first, end: first + count, of: layers, host_experts: 0 };
            first = stage.end;
            stage
        });
        Ok(Placement(stages.collect()))
    }

    /// The same with the experts of the layers before `end` on the host: see
    /// [`Stage::with_experts_on_host`].
    pub fn with_experts_on_host(self, end: u32) -> Placement {
        Placement(self.0.into_iter().map(|stage| stage.with_experts_on_host(end)).collect())
    }

    /// Whether layers, or the experts of some, are on different devices.
    pub fn is_divided(&self) -> bool {
        self.0.len() > 1 || self.0.iter().any(Stage::is_cut)
    }

    /// The stages in the order of computation; at least one.
    pub fn stages(&self) -> &[Stage] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layer_belongs_to_one_stage() {
        for counts in [vec![6], vec![1, 5], vec![2, 1, 3], vec![1; 6]] {
            let placement = Placement::split(&counts, 6).unwrap();
            let layers: Vec<u32> = placement.stages().iter().flat_map(Stage::layers).collect();
            assert_eq!(layers, [0, 1, 2, 3, 4, 5]);
            let ends: Vec<[bool; 2]> =
                placement.stages().iter().map(|s| [s.is_first(), s.is_last()]).collect();
            assert_eq!(ends.iter().filter(|[first, _]| *first).count(), 1);
            assert_eq!(ends.iter().filter(|[_, last]| *last).count(), 1);
            assert!(ends[0][0] && ends[counts.len() - 1][1]);
        }
        assert_eq!(Placement::whole(6), Placement::split(&[6], 6).unwrap());
    }

    #[test]
    fn experts_are_on_the_host_before_a_layer() {
        let placement = Placement::split(&[3, 3], 6).unwrap().with_experts_on_host(4);
        let [first, last] = placement.stages() else { panic!("{placement:?}") };
        let on_host = |stage: &Stage| (0..6).filter(|&layer| stage.has_experts_on_host(layer)).count();
        assert_eq!((on_host(first), on_host(last)), (3, 1));
        assert!(first.is_cut() && last.is_cut() && !first.has_all_layers());
        let none = Stage::whole(6).with_experts_on_host(0);
        assert!(!none.is_cut() && none == Stage::whole(6) && none.has_all_layers());
    }

    #[test]
    fn wrong_divisions_are_refused() {
        for counts in [&[][..], &[0, 6], &[3, 2], &[6, 1], &[u32::MAX, 7]] {
            let error = Placement::split(counts, 6).unwrap_err().to_string();
            let expected =
                format!("the layers of each device must be at least 1 and 6 together, is {counts:?}");
            assert_eq!(error, expected);
        }
        let error = Stage::whole(3).check(4).unwrap_err().to_string();
        assert_eq!(error, "the stage of a graph must be one of a model with 4 layers, is layers 0–2 of 3");
    }
}
