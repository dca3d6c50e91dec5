//! Templates of well-known model families, for models without one.

use crate::tokenizer::Tokenizer;

/// A family: its name, a characteristic token, its template.
struct Family {
    name: &'static str,
    mark: Option<&'static str>,
    template: &'static str,
}

const FAMILIES: [Family; 3] = [
    Family {
        name: "chatml",
        mark: Some("<|im_start|>"),
        template: "\
{%- for message in messages -%}
{{ '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}",
    },
    Family {
        name: "llama3",
        mark: Some("<|start_header_id|>"),
        template: "\
{{- bos_token -}}
{%- for message in messages -%}
{{ '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' ~ message.content | trim ~ '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif -%}",
    },
    Family {
        name: "llama2",
        mark: None,
        template: "\
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
  {%- if message.role == 'system' -%}
    {%- set ns.system = '<<SYS>>\n' ~ message.content | trim ~ '\n<</SYS>>\n\n' -%}
  {%- elif message.role == 'user' -%}
    {{ bos_token ~ '[INST] ' ~ ns.system ~ message.content | trim ~ ' [/INST]' }}
    {%- set ns.system = '' -%}
  {%- else -%}
    {{ ' ' ~ message.content | trim ~ ' ' ~ eos_token }}
  {%- endif -%}
{%- endfor -%}",
    },
];

/// The template of a family.
pub(super) fn named(name: &str) -> Option<&'static str> {
    FAMILIES.iter().find(|family| family.name == name).map(|family| family.template)
}

/// All names.
pub(super) fn names() -> String {
    FAMILIES.iter().map(|family| family.name).collect::<Vec<_>>().join(", ")
}

/// The family whose characteristic token is in the vocabulary.
pub(super) fn of(tokenizer: &Tokenizer) -> Option<&'static str> {
    let has = |mark: &str| tokenizer.special_token(mark).is_some();
    FAMILIES.iter().find(|family| family.mark.is_some_and(has)).map(|family| family.name)
}
