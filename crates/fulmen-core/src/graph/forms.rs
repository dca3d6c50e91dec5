//! Forms of activations: in what else than f32 a backend's kernels pass an activation to the next one.

use crate::Extent;

/// A form that a backend defines: activations quantized to 8 bits, or packed in f16 as tensor cores read
/// them. It means something to the backend only; a plan compares forms, and reserves memory for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// A number of the backend's choice.
    pub id: u32,
    /// Its name in messages and plans.
    pub name: &'static str,
    /// Bytes of the activation in this form.
    pub bytes: usize,
    /// What the activation was combined with, such as the gain of a norm.
    pub operand: Option<FormOperand>,
}

/// Memory that the values of a form depend on, besides the activation's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormOperand {
    /// Its address.
    pub ptr: u64,
    /// Its length.
    pub bytes: usize,
}

/// An activation in a form, wherever it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivationForm {
    /// The address of the f32 values that it stands for.
    pub ptr: u64,
    /// Rows.
    pub rows: u32,
    /// Values of a row.
    pub width: u32,
    /// The form.
    pub form: Form,
}

impl ActivationForm {
    /// The f32 values.
    pub(super) fn source(&self) -> Extent {
        let bytes = (self.rows as usize).saturating_mul(self.width as usize).saturating_mul(4);
        Extent { what: "the activation", ptr: self.ptr, bytes }
    }

    /// Whether a write to any of these ranges would change the values.
    pub(super) fn is_changed_by(&self, written: &[Extent]) -> bool {
        written.iter().any(|range| range.overlaps(self.source())) || self.operand_is_changed_by(written)
    }

    pub(super) fn operand_is_changed_by(&self, written: &[Extent]) -> bool {
        let Some(FormOperand { ptr, bytes }) = self.form.operand else { return false };
        written.iter().any(|range| range.overlaps(Extent { what: "the operand", ptr, bytes }))
    }
}

/// A forwarded activation: its form, and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// What it is.
    pub activation: ActivationForm,
    /// Its address, a multiple of [`ALIGNMENT`](crate::ALIGNMENT).
    pub ptr: u64,
}
