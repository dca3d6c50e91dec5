//! Collects the bindings of a kernel together with their declarations.

use super::{
    Binding, KernelError, LaunchList, Role,
    launch_list::{kernel, kernel_launch, padded},
    preprocess::{Value, render},
};
use crate::kernel::{Access, Caps, StorageBinding};

/// The bindings of a kernel, in order: their declarations, and the buffers. Every buffer is bound whole.
pub(super) struct KernelBindings<'a> {
    label: &'static str,
    caps: &'a Caps,
    declared: Vec<StorageBinding>,
    bindings: Vec<Binding>,
}

impl<'a> KernelBindings<'a> {
    /// No bindings yet, for a kernel with this label.
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

    /// Binds a buffer read-only, as an array of `element`s.
    pub(super) fn read(
        &mut self,
        name: &'static str,
        role: Role,
        element: &str,
        bytes: u64,
    ) -> Result<(), KernelError> {
        self.add(name, role, Access::Read, element, bytes)
    }

    /// Binds a buffer read-write, as an array of `element`s.
    pub(super) fn write(
        &mut self,
        name: &'static str,
        role: Role,
        element: &str,
        bytes: u64,
    ) -> Result<(), KernelError> {
        self.add(name, role, Access::ReadWrite, element, bytes)
    }

    /// The number of bindings.
    pub(super) fn len(&self) -> usize {
        self.bindings.len()
    }

    /// Renders the kernel file with these values, and adds its launch to the list.
    pub(super) fn launch(
        self,
        list: &mut LaunchList,
        file: &str,
        values: &[(&'static str, Value)],
        params: Vec<u32>,
        groups: u64,
    ) -> Result<(), KernelError> {
        // Kernels have a handful of parameters.
        let words = params.len() as u32;
        let kernel = kernel(self.label, render(file, values), self.declared, words);
        list.launches.push(kernel_launch(kernel, params, groups, self.bindings, self.caps)?);
        Ok(())
    }
}

/// Refuses a buffer that is larger than a binding.
pub(super) fn fits(op: &'static str, what: &'static str, bytes: u64, caps: &Caps) -> Result<(), KernelError> {
    let (bytes, limit) = (padded(bytes), caps.max_binding.min(1 << 32));
    if bytes > limit {
        return Err(KernelError::TooLarge { op: op.to_owned(), what, bytes, limit });
    }
    Ok(())
}

/// The error of a malformed call.
pub(super) fn invalid(op: &'static str, reason: impl Into<String>) -> KernelError {
    KernelError::Invalid { op: op.to_owned(), reason: reason.into() }
}
