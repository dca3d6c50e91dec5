//! What stands before the entry point of every kernel here: parameters, bindings, epilogue and store.

use std::ops::Range;

use super::{EpilogueInput, EpilogueSource, MatmulShape};
use crate::kernel::{Access, Caps, Kernel, Launch};

/// One product, or a range of its columns.
#[derive(Clone, Debug)]
pub(in crate::kernels) struct Job<'a> {
    pub(in crate::kernels) shape: MatmulShape,
    pub(in crate::kernels) columns: Range<u32>,
    pub(in crate::kernels) ending: Ending<'a>,
    pub(in crate::kernels) caps: &'a Caps,
}

/// What becomes of the sums.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels) enum Ending<'a> {
    /// `v` is the sum.
    Single(&'a EpilogueSource),
    /// `v0` and `v1` are the sums of two products with the same A, computed in one launch.
    Pair(&'a EpilogueSource),
    /// `v1` is the sum, `v0` was stored by an earlier launch and is bound after the other inputs.
    SecondOfPair(&'a EpilogueSource),
}

impl<'a> Ending<'a> {
    pub(in crate::kernels) fn epilogue(self) -> &'a EpilogueSource {
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
    /// As they are, into a slice of the scratch.
    Slice,
}

/// The text before an entry point.
pub(in crate::kernels) struct Head {
    pub(in crate::kernels) text: String,
    pub(super) access: Vec<Access>,
    param_words: u32,
}

/// Words of `Params` before the scalars.
const FIXED_WORDS: u32 = 8;

impl Job<'_> {
    /// Products in this launch.
    pub(super) fn products(&self) -> u32 {
        if let Ending::Pair(_) = self.ending { 2 } else { 1 }
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

    /// Declares parameters, `inputs` (name and type), `dst`, the epilogue's inputs, and the functions
    /// `put1(v, slice, row, col)` or, where `width` is 4, `put4` (and for both widths a `put4` that guards columns).
    pub(in crate::kernels) fn head(&self, inputs: &[(&str, &str)], width: u32, store: Store) -> Head {
        let epilogue = self.ending.epilogue();
        let scalars = if store == Store::Output { epilogue.scalars.len() } else { 0 };
        let mut text = String::new();
        if inputs.iter().any(|(_, t)| t.contains("f16")) {
            text.push_str("enable f16;\n");
        }
        text.push_str(
            "struct Params { m: u32, k: u32, n: u32, ldo: u32, col0: u32, count: u32, span: u32, slices: u32",
        );
        (0..scalars).for_each(|i| text.push_str(&format!(", s{i}: f32")));
        text.push_str(" }\n");
        let mut access = Vec::new();
        let mut bind = |text: &mut String, name: &str, ty: &str, how: Access| {
            let mode = if how == Access::Read { "read" } else { "read_write" };
            let at = access.len();
            text.push_str(&format!("@group(0) @binding({at}) var<storage, {mode}> {name}: array<{ty}>;\n"));
            access.push(how);
        };
        for (name, ty) in inputs {
            bind(&mut text, name, ty, Access::Read);
        }
        bind(&mut text, "dst", if width == 4 { "vec4<f32>" } else { "f32" }, Access::ReadWrite);
        if store == Store::Output {
            for i in 0..epilogue.inputs.len() {
                bind(&mut text, &format!("x{i}"), "f32", Access::Read);
            }
            if let Ending::SecondOfPair(_) = self.ending {
                bind(&mut text, "first", "f32", Access::Read);
            }
            text.push_str(&self.finish());
        }
        text.push_str(&self.puts(width, store));
        Head { text, access, param_words: FIXED_WORDS + scalars as u32 }
    }

    /// The epilogue as a function.
    fn finish(&self) -> String {
        let epilogue = self.ending.epilogue();
        let values = if let Ending::Pair(_) = self.ending { "v0: f32, v1: f32" } else { "v: f32" };
        let mut text = format!("{}\nfn finish({values}, row: u32, col: u32) -> f32 {{\n", epilogue.functions);
        for (i, input) in epilogue.inputs.iter().enumerate() {
            let at = match input {
                EpilogueInput::PerElement => "row * params.ldo + col",
                EpilogueInput::PerColumn => "col",
                EpilogueInput::PerRow => "row",
            };
            text.push_str(&format!("    let e{i} = x{i}[{at}];\n"));
        }
        if let Ending::SecondOfPair(_) = self.ending {
            text.push_str("    let v0 = first[row * params.ldo + col];\n    let v1 = v;\n");
        }
        text.push_str(&format!("    return {};\n}}\n", epilogue.expr));
        text
    }

    fn puts(&self, width: u32, store: Store) -> String {
        let at = match store {
            Store::Slice => "(slice * params.m + row) * params.n + col",
            Store::Output => "row * params.ldo + params.col0 + col",
        };
        let names: &[&str] = match (store, self.ending) {
            (Store::Output, Ending::Pair(_)) => &["v0", "v1"],
            _ => &["v"],
        };
        let list =
            |each: &dyn Fn(&str) -> String| names.iter().map(|n| each(n)).collect::<Vec<_>>().join(", ");
        let place = "slice: u32, row: u32, col: u32";
        // The stored value of component `c` in column `col + i`.
        let done = |c: &str, i: usize| match store {
            Store::Slice => format!("v{c}"),
            Store::Output => {
                format!("finish({}, row, params.col0 + col + {i}u)", list(&|n| format!("{n}{c}")))
            }
        };
        let components = [".x", ".y", ".z", ".w"].into_iter().enumerate();
        let four = list(&|n| format!("{n}: vec4<f32>"));
        if width == 1 {
            let each = components.map(|(i, c)| {
                let values = list(&|n| format!("{n}{c}"));
                format!("    if (col + {i}u < params.n) {{ put1({values}, slice, row, col + {i}u); }}\n")
            });
            return format!(
                "fn put1({}, {place}) {{ dst[{at}] = {}; }}\nfn put4({four}, {place}) {{\n{}}}\n",
                list(&|n| format!("{n}: f32")),
                done("", 0),
                each.collect::<String>()
            );
        }
        let done = match store {
            Store::Slice => "v".to_owned(),
            Store::Output => {
                format!("vec4<f32>({})", components.map(|(i, c)| done(c, i)).collect::<Vec<_>>().join(", "))
            }
        };
        format!("fn put4({four}, {place}) {{\n    if (col < params.n) {{ dst[({at}) / 4u] = {done}; }}\n}}\n")
    }

    /// The launch of `main` behind `head` over `count` workgroups.
    pub(in crate::kernels) fn launch(
        &self,
        label: String,
        head: Head,
        main: &str,
        workgroups: [u32; 3],
        numbers: Numbers,
        store: Store,
    ) -> Launch {
        let MatmulShape { m, k, n, .. } = self.shape;
        let Numbers { count, span, slices } = numbers;
        let mut params = vec![m, k, self.n(), n, self.columns.start, count, span, slices];
        if store == Store::Output {
            params.extend(self.ending.epilogue().scalars.iter().map(|s| s.to_bits()));
        }
        let Head { mut text, access, param_words } = head;
        text.push_str(main);
        let kernel = Kernel { label: label.into(), wgsl: text, access, param_words };
        Launch { kernel, params, workgroups }
    }
}

/// The parameters that depend on the kernel.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels) struct Numbers {
    /// Workgroups with work.
    pub(in crate::kernels) count: u32,
    /// Elements of k (or slabs of it) in a slice.
    pub(in crate::kernels) span: u32,
    /// Slices of k.
    pub(in crate::kernels) slices: u32,
}
