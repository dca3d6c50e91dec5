//! Compiles a kernel's WGSL to SPIR-V exactly as wgpu does for a trusted module, so that the driver can
//! find the machine code in its cache.

use ash::vk;
use wgpu::naga::{
    ShaderStage,
    back::{pipeline_constants::process_overrides, spv},
    front::wgsl,
    proc::{BoundsCheckPolicies, BoundsCheckPolicy},
    valid,
};

/// The SPIR-V features of a device.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) version: (u8, u8),
    pub(super) f16: bool,
    pub(super) subgroups: bool,
    pub(super) matrix: bool,
    pub(super) int8: bool,
    /// `StorageInputOutput16` may be declared. No kernel uses it, but it is part of the module wgpu
    /// generates.
    pub(super) inputs16: bool,
    pub(super) dot_product: bool,
}

/// The newest SPIR-V of a Vulkan version.
pub(super) fn version(api: u32) -> (u8, u8) {
    match (vk::api_version_major(api), vk::api_version_minor(api)) {
        (0, _) | (1, 0) => (1, 0),
        (1, 1) => (1, 3),
        (1, 2) => (1, 5),
        _ => (1, 6),
    }
}

impl Target {
    fn capabilities(&self) -> Vec<spv::Capability> {
        use spv::Capability as C;
        let mut all = vec![C::Shader, C::Matrix];
        let mut add = |has: bool, more: &[C]| {
            if has {
                all.extend_from_slice(more);
            }
        };
        add(self.f16, &[C::Float16]);
        add(
            self.subgroups,
            &[
                C::GroupNonUniform,
                C::GroupNonUniformVote,
                C::GroupNonUniformArithmetic,
                C::GroupNonUniformBallot,
                C::GroupNonUniformShuffle,
                C::GroupNonUniformShuffleRelative,
                C::GroupNonUniformQuad,
            ],
        );
        add(self.matrix, &[C::CooperativeMatrixKHR, C::VulkanMemoryModel]);
        add(self.int8, &[C::Int8]);
        add(
            self.dot_product,
            &[
                C::DotProductKHR,
                C::DotProductInputAllKHR,
                C::DotProductInput4x8BitKHR,
                C::DotProductInput4x8BitPackedKHR,
            ],
        );
        all
    }

    /// A kernel's module without run-time checks, with the entry point `main` and unchanged binding numbers.
    pub(super) fn compile(&self, text: &str) -> Result<Vec<u32>, String> {
        let module = wgsl::parse_str(text).map_err(|error| error.to_string())?;
        // wgpu has validated the module; this pass only collects what the writer needs.
        let info = valid::Validator::new(valid::ValidationFlags::empty(), valid::Capabilities::all())
            .subgroup_stages(valid::ShaderStages::all())
            .subgroup_operations(valid::SubgroupOperationSet::all())
            .validate(&module)
            .map_err(|error| error.to_string())?;
        let entry = (ShaderStage::Compute, "main");
        let (module, info) = process_overrides(&module, &info, Some(entry), &Default::default())
            .map_err(|error| error.to_string())?;
        let unchecked = BoundsCheckPolicy::Unchecked;
        let options = spv::Options {
            lang_version: self.version,
            flags: spv::WriterFlags::LABEL_VARYINGS | spv::WriterFlags::FORCE_POINT_SIZE,
            fake_missing_bindings: true,
            capabilities: Some(self.capabilities().into_iter().collect()),
            bounds_check_policies: BoundsCheckPolicies {
                index: unchecked,
                buffer: unchecked,
                image_load: unchecked,
                binding_array: unchecked,
            },
            zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
            force_loop_bounding: false,
            use_storage_input_output_16: self.inputs16,
            emit_int_div_checks: false,
            debug_info: None,
            ..spv::Options::default()
        };
        let pipeline =
            spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: "main".to_owned() };
        spv::write_vec(&module, &info, &options, Some(&pipeline)).map_err(|error| error.to_string())
    }
}
