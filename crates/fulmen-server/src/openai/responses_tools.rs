//! The tools of `/v1/responses`: functions, also in namespaces.

use std::collections::BTreeMap;

use fulmen_model::template::ToolSpec;

use super::messages::{checked_tool, unsupported_tool};
use super::responses_types::ResponsesTool;
use crate::error::ApiError;

/// The namespace of each function that has one. Models write the name of the function alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Namespaces(BTreeMap<String, String>);

impl Namespaces {
    pub(crate) fn of(tools: Option<&[ResponsesTool]>) -> Namespaces {
        let mut all = BTreeMap::new();
        for tool in tools.unwrap_or_default() {
            let Some(namespace) = &tool.name else { continue };
            for function in tool.tools.iter().flatten().filter_map(|function| function.name.as_ref()) {
                all.insert(function.clone(), namespace.clone());
            }
        }
        Namespaces(all)
    }

    /// The namespace of a function.
    pub(crate) fn get(&self, function: &str) -> Option<&str> {
        self.0.get(function).map(String::as_str)
    }
}

/// The functions of a request, checked.
pub(crate) fn specs(tools: Option<Vec<ResponsesTool>>, most: usize) -> Result<Vec<ToolSpec>, ApiError> {
    let mut specs = Vec::new();
    let mut has_namespaces = false;
    for (index, tool) in tools.unwrap_or_default().into_iter().enumerate() {
        match tool.kind.as_str() {
            "function" if tool.tools.is_none() => specs.push(function(index, tool, None)?),
            "namespace" => {
                has_namespaces = true;
                if tool.name.is_none() || tool.parameters.is_some() || tool.strict.is_some() {
                    let message = format!("tools[{index}]: expected a namespace with name and tools only");
                    return Err(ApiError::field("tools", message));
                }
                for inner in tool.tools.unwrap_or_default() {
                    if inner.kind != "function" || inner.tools.is_some() {
                        return Err(unsupported_tool(index, &inner.kind));
                    }
                    specs.push(function(index, inner, tool.description.as_deref())?);
                }
            }
            kind => return Err(unsupported_tool(index, kind)),
        }
    }
    if specs.len() > most {
        let message = format!("tools: expected at most {most}, got {}", specs.len());
        return Err(ApiError::field("tools", message));
    }
    if has_namespaces {
        refuse_equal_names(&specs)?;
    }
    Ok(specs)
}

/// A function; what its namespace is for stands before what it is for.
fn function(index: usize, tool: ResponsesTool, namespace: Option<&str>) -> Result<ToolSpec, ApiError> {
    let description = match (namespace, tool.description) {
        (Some(namespace), Some(own)) => Some(format!("{namespace}\n{own}")),
        (namespace, own) => own.or(namespace.map(str::to_owned)),
    };
    let spec = checked_tool(index, tool.name.unwrap_or_default(), description, tool.parameters)?;
    Ok(spec.with_strict(tool.strict == Some(true)))
}

/// A call has the name of a function: it must say of which namespace.
fn refuse_equal_names(specs: &[ToolSpec]) -> Result<(), ApiError> {
    let mut names: Vec<&str> = specs.iter().map(ToolSpec::name).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            let message = format!("tools: several functions of namespaces are called {:?}", pair[0]);
            Err(ApiError::field("tools", message))
        }
        None => Ok(()),
    }
}
