//! The bindings of a kernel, collected together with their declarations.

use super::{
    Binding, KernelError, Plan, Role,
    plan::{kernel, padded, step},
    template::expand,
};
use crate::kernel::{Access, Caps, StorageBinding};

/// What a kernel binds, in order: the declarations, and the buffers. Everything is bound whole.
pub(super) struct Bind<'a> {
    label: &'static str,
    caps: &'a Caps,
    declared: Vec<StorageBinding>,
    bindings: Vec<Binding>,
}

impl<'a> Bind<'a> {
    /// None yet, for a kernel of this name.
    pub(super) fn new(label: &'static str, caps: &'a Caps) -> Self {
        Self { label, caps, declared: Vec::new(), bindings: Vec::new() }
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
        self.declared.push(StorageBinding::new(name, element.to_owned(), access));
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
        self.declared.len()
    }

    /// Adds the launch of a template to the plan.
    pub(super) fn launch(
        self,
        plan: &mut Plan,
        template: &str,
        values: &[(&str, &str)],
        params: Vec<u32>,
        groups: u64,
    ) -> Result<(), KernelError> {
        // As many as the caller has just listed.
        let words = params.len() as u32;
        // The module declares the buffers.
        let all: Vec<(&str, &str)> = values.iter().copied().chain([("buffers", "")]).collect();
        let kernel = kernel(self.label, expand(template, &all), self.declared, words);
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
