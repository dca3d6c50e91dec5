//! The bindings of a kernel, collected together with their declarations.

use super::{
    Binding, KernelError, Plan, Role,
    plan::{kernel, padded, step},
    storage::variable,
    template::expand,
};
use crate::kernel::{Access, Caps};

/// What a kernel binds, in order: the declarations, and the buffers. Everything is bound whole.
pub(super) struct Bind<'a> {
    label: &'static str,
    caps: &'a Caps,
    text: String,
    access: Vec<Access>,
    bindings: Vec<Binding>,
}

impl<'a> Bind<'a> {
    /// None yet, for a kernel of this name.
    pub(super) fn new(label: &'static str, caps: &'a Caps) -> Self {
        Self { label, caps, text: String::new(), access: Vec::new(), bindings: Vec::new() }
    }

    fn add(
        &mut self,
        name: &'static str,
        role: Role,
        access: Access,
        element: &str,
        bytes: u64,
    ) -> Result<(), KernelError> {
        fits(self.label, name, bytes, self.caps)?;
        self.text += &variable(self.access.len(), name, access, element);
        self.access.push(access);
        self.bindings.push(Binding { role, offset: 0, bytes: padded(bytes.max(1)) });
        Ok(())
    }

    /// Binds a buffer that is only read.
    pub(super) fn read(
        &mut self,
        name: &'static str,
        role: Role,
        element: &str,
        bytes: u64,
    ) -> Result<(), KernelError> {
        self.add(name, role, Access::Read, element, bytes)
    }

    /// Binds a buffer that is written.
    pub(super) fn write(
        &mut self,
        name: &'static str,
        role: Role,
        element: &str,
        bytes: u64,
    ) -> Result<(), KernelError> {
        self.add(name, role, Access::ReadWrite, element, bytes)
    }

    /// How many buffers there are.
    pub(super) fn len(&self) -> usize {
        self.access.len()
    }

    /// Adds the launch of a template to the plan. `{{buffers}}` becomes the declarations.
    pub(super) fn launch(
        self,
        plan: &mut Plan,
        template: &str,
        values: &[(&str, &str)],
        params: Vec<u32>,
        groups: u64,
    ) -> Result<(), KernelError> {
        let all: Vec<(&str, &str)> = values.iter().copied().chain([("buffers", &*self.text)]).collect();
        // As many as the caller has just listed.
        let words = params.len() as u32;
        let kernel = kernel(self.label, expand(template, &all), self.access, words);
        plan.steps.push(step(kernel, params, groups, self.bindings, self.caps)?);
        Ok(())
    }
}

/// Refuses what one binding does not hold.
pub(super) fn fits(op: &'static str, what: &'static str, bytes: u64, caps: &Caps) -> Result<(), KernelError> {
    let (bytes, limit) = (padded(bytes), caps.max_binding.min(1 << 32));
    if bytes > limit {
        return Err(KernelError::TooLarge { op: op.to_owned(), what, bytes, limit });
    }
    Ok(())
}

/// A malformed call.
pub(super) fn invalid(op: &'static str, reason: impl Into<String>) -> KernelError {
    KernelError::Invalid { op: op.to_owned(), reason: reason.into() }
}
