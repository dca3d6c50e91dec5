//! Keeps drivers from writing to the terminal.

/// Switches off Mesa's device-select layer if there is no desktop session.
///
/// That Vulkan layer asks the Wayland desktop which GPU it uses, to list that one first. Without a session,
/// libwayland complains on stderr each time devices are listed. A choice that the user made through the layer
/// (`MESA_VK_DEVICE_SELECT`) is respected. Call this before anything else: it changes the environment.
pub(crate) fn quiet_drivers() {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if cfg!(target_os = "linux") && !set("XDG_RUNTIME_DIR") && !set("MESA_VK_DEVICE_SELECT") {
        // SAFETY: `main` calls this first, so no other thread can be reading the environment.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}
