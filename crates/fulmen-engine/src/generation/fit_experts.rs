//! The experts of how many layers a device has no room for.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use fulmen_core::Backend;
use fulmen_model::ModelError;
use fulmen_model::arch::{Config, split_fused};
use fulmen_model::source::ModelSource;

use super::fit::{Fit, FitFor};

/// The experts of how many mixture layers are to be on the CPU, the first ones of the model. Everything else
/// is on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuExperts {
    /// As few as possible, so that the rest fits the free memory of the GPU.
    Auto,
    /// Those of all layers.
    All,
    /// Those of this many; of all if there are fewer.
    Count(u32),
}

impl fmt::Display for CpuExperts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CpuExperts::Auto => f.pad("auto"),
            CpuExperts::All => f.pad("all"),
            CpuExperts::Count(count) => write!(f, "{count}"),
        }
    }
}

impl FromStr for CpuExperts {
    type Err = String;

    fn from_str(text: &str) -> Result<CpuExperts, String> {
        match text {
            "auto" => Ok(CpuExperts::Auto),
            "all" => Ok(CpuExperts::All),
            _ => match text.parse() {
                Ok(count) => Ok(CpuExperts::Count(count)),
                Err(_) => Err("expected auto, all or a number of layers".to_owned()),
            },
        }
    }
}

/// The experts that a device has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertFit {
    /// Mixture layers whose experts belong to the host, the first ones.
    pub on_host: u32,
    /// All mixture layers.
    pub of: u32,
    /// Bytes that the rest needs: weights, KV cache, activations and a reserve.
    pub needed: u64,
    /// Bytes that the device reports as available, if it does. Less than is needed if not even the
    /// model without experts fits.
    pub available: Option<u64>,
}

impl fmt::Display for ExpertFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = fulmen_core::device::format_bytes;
        let ExpertFit { on_host, of, needed, .. } = *self;
        let here = of - on_host;
        let (needed, free) = match self.available {
            None => {
                return write!(f, "the experts of {here} of {of} layers, as the free memory is not known");
            }
            Some(free) if needed > free => {
                let (needed, free) = (bytes(needed), bytes(free));
                return write!(f, "not even the model without experts fits: {needed} needed, {free} free");
            }
            Some(free) => (bytes(needed), bytes(free)),
        };
        match here {
            0 => write!(f, "everything but the experts needs {needed} of {free} free"),
            _ => write!(f, "experts of {here} of {of} layers and the rest need {needed} of {free} free"),
        }
    }
}

/// Finds the experts of how many of a model's mixture layers a device has room for, beside everything else.
/// If it does not report its memory, those of all.
///
/// The experts of the others belong to another device: see
/// [`Model::from_source_experts_on`](super::Model::from_source_experts_on).
///
/// # Errors
/// [`ModelError::NotAMixture`] if the model has no experts.
pub fn fit_experts(
    source: Arc<dyn ModelSource>,
    device: &dyn Backend,
    demand: FitFor<'_>,
) -> Result<ExpertFit, ModelError> {
    let source = split_fused(source)?;
    let config = Config::read(source.as_ref())?;
    let of = config.expert_layers().len() as u32;
    let stage = |count: u32| Ok::<_, ModelError>(config.with_experts_on_host(count)?.stages()[0]);
    let all_here = stage(0)?;
    let fit = Fit::new(source.as_ref(), &config, device, demand)?;
    let available = device.available_bytes();
    let Some(room) = available else { return Ok(ExpertFit { on_host: 0, of, needed: 0, available }) };
    let needed = fit.needed(all_here, room)?;
    if needed <= room {
        return Ok(ExpertFit { on_host: 0, of, needed, available });
    }
    // The least that fits: what the device needs falls with the number on the host.
    let (mut low, mut high) = (1, of);
    while low < high {
        let count = low + (high - low) / 2;
        match fit.needed(stage(count)?, room)? <= room {
            true => high = count,
            false => low = count + 1,
        }
    }
    let needed = fit.needed(stage(high)?, room)?;
    Ok(ExpertFit { on_host: high, of, needed, available })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_a_number_all_or_auto() {
        assert_eq!("auto".parse(), Ok(CpuExperts::Auto));
        assert_eq!("all".parse(), Ok(CpuExperts::All));
        assert_eq!("12".parse(), Ok(CpuExperts::Count(12)));
        for text in ["", "-1", "none", "1.5", "All"] {
            let error = text.parse::<CpuExperts>().unwrap_err();
            assert_eq!(error, "expected auto, all or a number of layers");
        }
        for text in ["auto", "all", "3"] {
            assert_eq!(text.parse::<CpuExperts>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_fit_says_what_it_is() {
        let fit = ExpertFit { on_host: 5, of: 8, needed: 1 << 20, available: Some(3 << 20) };
        let expected = "experts of 3 of 8 layers and the rest need 1 MiB of 3 MiB free";
        assert_eq!(fit.to_string(), expected);
        let none = ExpertFit { on_host: 8, ..fit };
        assert_eq!(none.to_string(), "everything but the experts needs 1 MiB of 3 MiB free");
        let short = ExpertFit { needed: 5 << 20, ..none };
        let expected = "not even the model without experts fits: 5 MiB needed, 3 MiB free";
        assert_eq!(short.to_string(), expected);
        let unknown = ExpertFit { on_host: 0, available: None, ..fit };
        let expected = "the experts of 8 of 8 layers, as the free memory is not known";
        assert_eq!(unknown.to_string(), expected);
    }
}
