//! The weights of experts: one tensor per expert in a folder, one for all of them in a GGUF file.

use std::collections::BTreeMap;
use std::ops::Range;

use super::error::SafetensorsProblem;
use crate::source::TensorInfo;

/// Where the weight of one expert lies.
#[derive(Clone, Debug)]
pub(super) struct ExpertPart {
    /// The number of the file.
    pub(super) file: usize,
    /// Its bytes in that file.
    pub(super) range: Range<usize>,
}

/// The weights of experts found so far, by the name of the tensor that they form together.
pub(super) struct StackedExperts {
    experts: usize,
    found: BTreeMap<String, Found>,
}

struct Found {
    /// Shape and type of the weight of one expert.
    one: TensorInfo,
    parts: BTreeMap<usize, ExpertPart>,
}

impl StackedExperts {
    /// For layers with this many experts.
    pub(super) fn new(experts: u32) -> StackedExperts {
        let experts = usize::try_from(experts).unwrap_or(usize::MAX);
        StackedExperts { experts, found: BTreeMap::new() }
    }

    /// Adds the weight of an expert to the tensor `name`.
    pub(super) fn add(
        &mut self,
        name: String,
        expert: usize,
        info: &TensorInfo,
        part: ExpertPart,
    ) -> Result<(), SafetensorsProblem> {
        let tensor = || info.name().to_owned();
        if expert >= self.experts {
            return Err(SafetensorsProblem::ExtraExpert { tensor: tensor(), experts: self.experts });
        }
        let found =
            self.found.entry(name).or_insert_with(|| Found { one: info.clone(), parts: BTreeMap::new() });
        let describe = |info: &TensorInfo| format!("{:?} {}", info.dims(), info.dtype());
        if describe(&found.one) != describe(info) || info.dims().len() != 2 {
            let (found, expected) = (describe(info), describe(&found.one));
            return Err(SafetensorsProblem::ExpertShape { tensor: tensor(), found, expected });
        }
        match found.parts.insert(expert, part) {
            Some(_) => Err(SafetensorsProblem::Duplicate(tensor())),
            None => Ok(()),
        }
    }

    /// The tensors of all experts, each with its parts in order.
    pub(super) fn finish(self) -> Result<Vec<(TensorInfo, Vec<ExpertPart>)>, SafetensorsProblem> {
        let mut stacked = Vec::new();
        for (name, Found { one, parts }) in self.found {
            if let Some(expert) = (0..self.experts).find(|expert| !parts.contains_key(expert)) {
                return Err(SafetensorsProblem::MissingExpert {
                    tensor: name,
                    expert,
                    experts: self.experts,
                });
            }
            let dims = [one.dims()[0], one.dims()[1], self.experts];
            let info = TensorInfo::new(&name, &dims, one.dtype());
            let info = info.map_err(|error| SafetensorsProblem::Size { tensor: name, error })?;
            stacked.push((info, parts.into_values().collect()));
        }
        Ok(stacked)
    }
}
