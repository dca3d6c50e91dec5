//! What every matmul kernel here starts with (`prelude.wgsl`): parameters, bindings, epilogue and stores.

use std::ops::Range;

use super::{EpilogueInput, EpilogueSource, MatmulShape};
use crate::kernel::{Caps, Kernel, Launch, StorageBinding};
use crate::kernels::preprocess::{Value, render, values};

/// One matmul, or a range of its columns.
#[derive(Clone, Debug)]
pub(in crate::kernels) struct Job<'a> {
    pub(in crate::kernels) shape: MatmulShape,
    pub(in crate::kernels) columns: Range<u32>,
    pub(in crate::kernels) epilogue: EpilogueMode<'a>,
    pub(in crate::kernels) caps: &'a Caps,
}

/// What the epilogue works on.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels) enum EpilogueMode<'a> {
    /// `v` is the sum.
    Single(&'a EpilogueSource),
    /// `v0` and `v1` are the sums of two matmuls with the same A, computed in one launch.
    Pair(&'a EpilogueSource),
    /// `v1` is the sum, `v0` was stored by an earlier launch and is bound after the other inputs.
    SecondOfPair(&'a EpilogueSource),
}

impl<'a> EpilogueMode<'a> {
    pub(in crate::kernels) fn source(self) -> &'a EpilogueSource {
        match self {
            Self::Single(e) | Self::Pair(e) | Self::SecondOfPair(e) => e,
        }
    }
}

/// Where the sums go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernels) enum Store {
    /// Through the epilogue into the output.
    Output,
    /// As they are, into a split-K slice in scratch.
    Slice,
}

impl Store {
    /// Slices where k is split.
    pub(in crate::kernels) fn of(slices: u32) -> Self {
        if slices > 1 { Self::Slice } else { Self::Output }
    }
}

/// The values of `prelude.wgsl`, and the bindings and parameters of the kernel.
pub(in crate::kernels) struct Prelude {
    store: Store,
    values: Vec<(&'static str, Value)>,
    bindings: Vec<StorageBinding>,
    param_words: u32,
}

/// Words of `Params` before the scalars.
const FIXED_WORDS: u32 = 8;

impl Job<'_> {
    /// Matmuls in this launch.
    pub(super) fn matmuls(&self) -> u32 {
        if let EpilogueMode::Pair(_) = self.epilogue { 2 } else { 1 }
    }

    /// Columns in this launch.
    pub(in crate::kernels) fn n(&self) -> u32 {
        self.columns.end - self.columns.start
    }

    /// Elements of k that are loaded at once from a row of A, and from one of B where it is `[n, k]`.
    pub(super) fn k_width(&self) -> u32 {
        if self.shape.k.is_multiple_of(4) { 4 } else { 1 }
    }

    /// Columns that are stored at once; as many are loaded from a row of B where it is `[k, n]`.
    pub(super) fn n_width(&self) -> u32 {
        let aligned = [self.shape.n, self.columns.start, self.n()].iter().all(|n| n.is_multiple_of(4));
        if aligned { 4 } else { 1 }
    }

    /// For a kernel that reads `inputs` (names and element types) and stores `width` columns at once: binds
    /// the inputs, `dst`, and what the epilogue reads.
    pub(in crate::kernels) fn prelude(
        &self,
        inputs: &[(&'static str, &'static str)],
        width: u32,
        store: Store,
    ) -> Prelude {
        let epilogue = self.epilogue.source();
        let to_slices = store == Store::Slice;
        let scalars = if to_slices { 0 } else { epilogue.scalars.len() };
        let mut bindings: Vec<_> =
            inputs.iter().map(|&(name, element)| StorageBinding::read(name, element)).collect();
        bindings.push(StorageBinding::read_write("dst", if width == 4 { "vec4<f32>" } else { "f32" }));
        let second_of_pair = matches!(self.epilogue, EpilogueMode::SecondOfPair(_));
        if !to_slices {
            let read = (0..epilogue.inputs.len()).map(|i| StorageBinding::read(format!("x{i}"), "f32"));
            bindings.extend(read);
            bindings.extend(second_of_pair.then(|| StorageBinding::read("first", "f32")));
        }
        let input_index = |input: &EpilogueInput| match input {
            EpilogueInput::PerElement => "row * params.ldo + col",
            EpilogueInput::PerColumn => "col",
            EpilogueInput::PerRow => "row",
        };
        let values = values![
            coop: false,
            uses_f16: inputs.iter().any(|(_, element)| element.contains("f16")),
            scalars,
            to_slices,
            pair: self.matmuls() == 2,
            second_of_pair,
            inputs: epilogue.inputs.iter().map(input_index).collect::<Vec<_>>(),
            functions: epilogue.functions.clone(),
            expr: epilogue.expr.clone(),
            width,
            k_width: self.k_width(),
            matmuls: self.matmuls(),
            form: self.shape.elem.form(self.caps),
        ];
        // As many scalars as there are operations in an epilogue.
        let param_words = FIXED_WORDS + scalars as u32;
        Prelude { store, values: values.into(), bindings, param_words }
    }

    /// The launch of a kernel file over these workgroups.
    pub(in crate::kernels) fn launch(
        &self,
        label: String,
        file: &str,
        prelude: Prelude,
        values: impl IntoIterator<Item = (&'static str, Value)>,
        workgroups: [u32; 3],
        extent: Extent,
    ) -> Launch {
        let Prelude { store, values: mut all, bindings, param_words } = prelude;
        all.extend(values);
        let MatmulShape { m, k, n, .. } = self.shape;
        let Extent { count, span, slices } = extent;
        let mut params = vec![m, k, self.n(), n, self.columns.start, count, span, slices];
        if store == Store::Output {
            params.extend(self.epilogue.source().scalars.iter().map(|s| s.to_bits()));
        }
        let kernel = Kernel { label: label.into(), wgsl: render(file, &all), bindings, param_words };
        Launch { kernel, params, workgroups }
    }
}

/// The parameters that depend on the kernel.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels) struct Extent {
    /// Workgroups with work.
    pub(in crate::kernels) count: u32,
    /// Elements of k, or k-tiles, in a split-K slice; vectors of a row of A where k is not split.
    pub(in crate::kernels) span: u32,
    /// Split-K slices.
    pub(in crate::kernels) slices: u32,
}
