//! How elements lie in storage buffers, and the text that loads and stores them.
//!
//! Kernels compute in f32, on `EwF`: four elements at a time (`vec4<f32>`), or one (`f32`) where rows do not begin on
//! whole vectors.

use crate::kernel::{Access, Caps, StorageBinding};

/// The type of stored elements. Kernels compute in f32 whatever the type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Elem {
    /// 32-bit floats.
    #[default]
    F32,
    /// 16-bit floats. Where the device lacks them in kernels they are unpacked from 32-bit words.
    F16,
}

impl Elem {
    /// Bytes of an element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }

    /// The type of `width` elements in WGSL, where the device has it.
    pub(crate) const fn wgsl(self, width: u32) -> &'static str {
        match (self, width) {
            (Self::F32, 4) => "vec4<f32>",
            (Self::F32, _) => "f32",
            (Self::F16, 4) => "vec4<f16>",
            (Self::F16, _) => "f16",
        }
    }

    pub(crate) fn form(self, caps: &Caps) -> Form {
        match self {
            Self::F32 => Form::F32,
            Self::F16 if caps.f16 => Form::F16,
            Self::F16 => Form::PackedF16,
        }
    }
}

/// How a kernel sees the elements of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    F32,
    F16,
    /// Two in each `u32`.
    PackedF16,
}

/// Elements in an `EwF`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lanes {
    One,
    Four,
}

impl Lanes {
    pub(crate) const fn count(self) -> u64 {
        match self {
            Self::One => 1,
            Self::Four => 4,
        }
    }

    /// The names of the types of this many lanes, and sums and maxima over them.
    pub(crate) const fn aliases(self) -> &'static str {
        match self {
            Self::One => {
                "alias EwF = f32;\nalias EwI = i32;\nalias EwU = u32;\nalias EwB = bool;\n\
                 fn lanes_sum(v: EwF) -> f32 { return v; }\n\
                 fn lanes_max(v: EwF) -> f32 { return v; }\n\
                 fn lanes_max_key(v: EwU) -> u32 { return v; }\n"
            }
            Self::Four => {
                "alias EwF = vec4<f32>;\nalias EwI = vec4<i32>;\nalias EwU = vec4<u32>;\nalias EwB = vec4<bool>;\n\
                 fn lanes_sum(v: EwF) -> f32 { return (v.x + v.y) + (v.z + v.w); }\n\
                 fn lanes_max(v: EwF) -> f32 { return max(max(v.x, v.y), max(v.z, v.w)); }\n\
                 fn lanes_max_key(v: EwU) -> u32 { return max(max(v.x, v.y), max(v.z, v.w)); }\n"
            }
        }
    }
}

/// The line that must open a module that uses these forms.
pub(crate) fn enable(forms: &[Form]) -> &'static str {
    if forms.contains(&Form::F16) { "enable f16;\n" } else { "" }
}

/// The type of an array's elements where each holds `lanes`.
pub(crate) const fn element(form: Form, lanes: Lanes) -> &'static str {
    match (form, lanes) {
        (Form::F32, Lanes::Four) => "vec4<f32>",
        (Form::F16, Lanes::Four) => "vec4<f16>",
        (Form::PackedF16, Lanes::Four) => "vec2<u32>",
        (Form::F32, Lanes::One) => "f32",
        (Form::F16, Lanes::One) => "f16",
        (Form::PackedF16, Lanes::One) => "u32",
    }
}

/// Binds a buffer, and gives the text of `load_<name>(i)` of its i-th `EwF`; if it may be written and the form can be
/// stored, also `store_<name>(i, v)` and, for four lanes, `store_part_<name>(i, v, count)` of the first 1 to 3.
pub(crate) fn declare(
    bindings: &mut Vec<StorageBinding>,
    name: &str,
    form: Form,
    lanes: Lanes,
    access: Access,
) -> String {
    bindings.push(StorageBinding::new(name.to_owned(), element(form, lanes), access));
    let mut text = load(name, form, lanes);
    if access == Access::ReadWrite {
        text += &store(name, form, lanes);
    }
    text
}

fn load(name: &str, form: Form, lanes: Lanes) -> String {
    let body = match (form, lanes) {
        (Form::F32 | Form::F16, _) => format!("return EwF({name}[i]);"),
        (Form::PackedF16, Lanes::Four) => {
            format!("let w = {name}[i]; return EwF(unpack2x16float(w.x), unpack2x16float(w.y));")
        }
        (Form::PackedF16, Lanes::One) => {
            format!("let w = unpack2x16float({name}[i >> 1u]); return select(w.x, w.y, (i & 1u) == 1u);")
        }
    };
    format!("fn load_{name}(i: u32) -> EwF {{ {body} }}\n")
}

fn store(name: &str, form: Form, lanes: Lanes) -> String {
    let (whole, part) = match (form, lanes) {
        (Form::F32, Lanes::One) => (format!("{name}[i] = v;"), String::new()),
        (Form::F16, Lanes::One) => (format!("{name}[i] = f16(v);"), String::new()),
        // Two threads would write one word.
        (Form::PackedF16, Lanes::One) => return String::new(),
        (Form::F32, Lanes::Four) => (format!("{name}[i] = v;"), parts(name, "")),
        (Form::F16, Lanes::Four) => (format!("{name}[i] = vec4<f16>(v);"), parts(name, "f16")),
        (Form::PackedF16, Lanes::Four) => (
            format!("{name}[i] = vec2<u32>(pack2x16float(v.xy), pack2x16float(v.zw));"),
            format!(
                "{name}[i].x = pack2x16float(vec2<f32>(v.x, select(0.0, v.y, count > 1u)));\n    \
                 if (count > 2u) {{ {name}[i].y = pack2x16float(vec2<f32>(v.z, 0.0)); }}"
            ),
        ),
    };
    let mut text = format!("fn store_{name}(i: u32, v: EwF) {{ {whole} }}\n");
    if lanes == Lanes::Four {
        text += &format!("fn store_part_{name}(i: u32, v: EwF, count: u32) {{\n    {part}\n}}\n");
    }
    text
}

/// The stores of the first 1 to 3 lanes.
fn parts(name: &str, cast: &str) -> String {
    format!(
        "{name}[i].x = {cast}(v.x);\n    \
         if (count > 1u) {{ {name}[i].y = {cast}(v.y); }}\n    \
         if (count > 2u) {{ {name}[i].z = {cast}(v.z); }}"
    )
}
