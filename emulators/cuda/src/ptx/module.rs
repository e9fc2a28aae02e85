// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Directives: what a module declares around its instructions.

use super::decode::{Decoder, Variable, Variables};
use super::text::{Cursor, Written, statement, tokens, unsigned};
use super::types::Kind;
use super::{Global, Kernel, Module, Parameter, Refusal};

/// The oldest and newest versions of PTX whose texts are read.
const VERSIONS: std::ops::RangeInclusive<(u64, u64)> = (6, 0)..=(8, 8);

/// The targets that a device of capability 8.0 runs, with the first version of PTX that has them: the table of target
/// architectures at `.target`.
const TARGETS: &[(u32, (u64, u64))] = &[
    (50, (4, 0)),
    (52, (4, 1)),
    (53, (4, 2)),
    (60, (5, 0)),
    (61, (5, 0)),
    (62, (5, 0)),
    (70, (6, 0)),
    (72, (6, 1)),
    (75, (6, 3)),
    (80, (7, 0)),
];

/// The most bytes of parameters, and from which version and target on there may be more: "Kernel Function Parameters".
const PARAMETERS: (u32, u32) = (4352, 32764);
const MORE_PARAMETERS: (u32, (u64, u64)) = (70, (8, 1));

pub(super) fn parse(text: &str) -> Result<Module, Refusal> {
    let tokens = tokens(text)?;
    let mut cursor = Cursor::new(&tokens);
    let mut module = Module::default();
    let mut variables = Variables::default();
    cursor.expect(".version")?;
    let version = cursor.take()?.to_owned();
    let version_number =
        version.split_once('.').and_then(|(major, minor)| Some((unsigned(major)?, unsigned(minor)?)));
    if !version_number.is_some_and(|it| VERSIONS.contains(&it)) {
        let mut refusal = Refusal::new(cursor.line(), format!("version {version} of PTX"));
        refusal.is_newer = version_number.is_some_and(|it| it > *VERSIONS.end());
        return Err(refusal);
    }
    cursor.expect(".target")?;
    let target = cursor.take()?;
    let Some((target, _)) = TARGETS
        .iter()
        .find(|(number, least)| target == format!("sm_{number}") && version_number >= Some(*least))
    else {
        return Err(Refusal::new(cursor.line(), format!("target {target} in version {version} of PTX")));
    };
    let is_newer = *target >= MORE_PARAMETERS.0 && version_number >= Some(MORE_PARAMETERS.1);
    let most_parameters = if is_newer { PARAMETERS.1 } else { PARAMETERS.0 };
    cursor.expect(".address_size")?;
    cursor.expect("64")?;
    while let Some(word) = cursor.peek() {
        match word {
            ".visible" | ".weak" | ".extern" => {
                cursor.take()?;
                if word == ".extern" && cursor.peek() != Some(".shared") {
                    return Err(Refusal::new(cursor.line(), "a declaration of something elsewhere"));
                }
            }
            ".global" | ".const" | ".shared" => declare(&mut cursor, &mut module, &mut variables)?,
            ".entry" => {
                let kernel = entry(&mut cursor, text, (*target, most_parameters), &variables)?;
                if module.kernel(&kernel.name).is_some() {
                    return Err(Refusal::new(cursor.line(), "a second entry of this name"));
                }
                module.kernels.push(kernel);
            }
            _ => {
                cursor.take()?;
                return Err(Refusal::new(cursor.line(), format!("the directive `{word}`")));
            }
        }
    }
    Ok(module)
}

/// The bytes of a type of directives.
fn type_bytes(word: &str) -> Option<u32> {
    match word {
        ".b8" | ".u8" | ".s8" => Some(1),
        ".b16" | ".u16" | ".s16" | ".f16" => Some(2),
        ".b32" | ".u32" | ".s32" | ".f32" => Some(4),
        ".b64" | ".u64" | ".s64" | ".f64" => Some(8),
        _ => None,
    }
}

/// What was declared: a name with a size.
struct Declared {
    name: String,
    element: u32,
    size: u32,
    alignment: u32,
}

/// `.align 16 .b8 name[64]`.
fn declared(cursor: &mut Cursor<'_, '_>) -> Result<Declared, Refusal> {
    let mut alignment = None;
    let mut element = None;
    let mut pointer = false;
    loop {
        let word = cursor.take()?;
        if word == ".align" {
            let value = cursor.size()?;
            if !value.is_power_of_two() || value > 4096 {
                return Err(Refusal::new(cursor.line(), "an alignment that is none"));
            }
            alignment = Some(value);
        } else if let Some(bytes) = type_bytes(word) {
            element = Some(bytes);
        } else if word == ".ptr" {
            // A hint about a parameter: what it points to, also the alignment of that.
            pointer = true;
            if matches!(cursor.peek(), Some(".global" | ".shared" | ".const" | ".local")) {
                cursor.take()?;
            }
        } else if word.starts_with('.') {
            return Err(Refusal::new(cursor.line(), format!("`{word}` in a declaration")));
        } else {
            let name = word.to_owned();
            let element =
                element.ok_or_else(|| Refusal::new(cursor.line(), "a declaration without a type"))?;
            let mut size = element;
            if cursor.accept("[") {
                let count = if cursor.peek() == Some("]") { 0 } else { cursor.size()? };
                cursor.expect("]")?;
                size = count
                    .checked_mul(element)
                    .filter(|&size| size <= 1 << 28)
                    .ok_or_else(|| Refusal::new(cursor.line(), "a variable that is too large"))?;
            }
            let alignment = alignment.filter(|_| !pointer).unwrap_or(element);
            return Ok(Declared { name, element, size, alignment });
        }
    }
}

fn declare(
    cursor: &mut Cursor<'_, '_>,
    module: &mut Module,
    variables: &mut Variables,
) -> Result<(), Refusal> {
    let space = cursor.take()?;
    let it = declared(cursor)?;
    let line = cursor.line();
    if space == ".shared" {
        cursor.expect(";")?;
        let variable = Variable::Shared { size: it.size, alignment: it.alignment };
        return variables.add(it.name, variable, line);
    }
    let mut bytes = vec![0; it.size as usize];
    if cursor.accept("=") {
        let values = initial(cursor)?;
        let width = it.element as usize;
        if values.len() * width > bytes.len() {
            return Err(Refusal::new(line, "more values than elements"));
        }
        for (place, value) in bytes.chunks_mut(width).zip(values) {
            place.iter_mut().zip(value.to_le_bytes()).for_each(|(to, from)| *to = from);
        }
    }
    cursor.expect(";")?;
    let number = u32::try_from(module.globals.len()).unwrap_or(u32::MAX);
    variables.add(it.name.clone(), Variable::Global(number), line)?;
    let constant = space == ".const";
    let constants = module.globals.iter().filter(|global| global.constant).map(|global| global.bytes.len());
    if constant && constants.sum::<usize>() + bytes.len() > 64 << 10 {
        return Err(Refusal::new(line, "more than 64 KiB of constants"));
    }
    module.globals.push(Global { name: it.name, bytes, alignment: it.alignment, constant });
    Ok(())
}

fn initial(cursor: &mut Cursor<'_, '_>) -> Result<Vec<u64>, Refusal> {
    let mut values = Vec::new();
    let braces = cursor.accept("{");
    loop {
        let negative = cursor.accept("-");
        let word = cursor.take()?;
        let float = word.strip_prefix("0f").or_else(|| word.strip_prefix("0d"));
        let value = match float {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => unsigned(word),
        };
        let value = value.ok_or_else(|| Refusal::new(cursor.line(), format!("the value `{word}`")))?;
        values.push(if negative { value.wrapping_neg() } else { value });
        if !braces {
            return Ok(values);
        }
        if cursor.accept("}") {
            return Ok(values);
        }
        cursor.expect(",")?;
    }
}

fn entry(
    cursor: &mut Cursor<'_, '_>,
    text: &str,
    (target, most_parameters): (u32, u32),
    module: &Variables,
) -> Result<Kernel, Refusal> {
    cursor.expect(".entry")?;
    let mut kernel = Kernel { name: cursor.take()?.to_owned(), ..Kernel::default() };
    let mut variables = module.clone();
    if cursor.accept("(") && !cursor.accept(")") {
        loop {
            cursor.expect(".param")?;
            let it = declared(cursor)?;
            let offset = kernel.parameter_bytes.next_multiple_of(it.alignment);
            kernel.parameters.push(Parameter { offset, size: it.size });
            kernel.parameter_bytes = offset.saturating_add(it.size);
            if kernel.parameter_bytes > most_parameters {
                let reason = format!("more than {most_parameters} bytes of parameters");
                return Err(Refusal::new(cursor.line(), reason));
            }
            variables.add(it.name, Variable::Parameter { offset, size: it.size }, cursor.line())?;
            if cursor.accept(")") {
                break;
            }
            cursor.expect(",")?;
        }
    }
    loop {
        match cursor.take()? {
            ".maxntid" => kernel.max_block = Some(block(cursor)?),
            ".reqntid" => kernel.exact_block = Some(block(cursor)?),
            ".minnctapersm" | ".maxnreg" => {
                cursor.size()?;
            }
            "{" if kernel.max_block.is_some() && kernel.exact_block.is_some() => {
                return Err(Refusal::new(cursor.line(), "`.maxntid` beside `.reqntid`"));
            }
            "{" => break,
            word => return Err(Refusal::new(cursor.line(), format!("the directive `{word}`"))),
        }
    }
    body(cursor, text, Decoder::new(kernel, variables, target))
}

fn block(cursor: &mut Cursor<'_, '_>) -> Result<[u32; 3], Refusal> {
    let mut sizes = [1; 3];
    for (at, size) in sizes.iter_mut().enumerate() {
        if at > 0 && !cursor.accept(",") {
            break;
        }
        *size = cursor.size()?;
    }
    Ok(sizes)
}

fn body(cursor: &mut Cursor<'_, '_>, text: &str, mut decoder: Decoder) -> Result<Kernel, Refusal> {
    let lines: Vec<&str> = text.lines().collect();
    loop {
        match cursor.peek() {
            Some("{") => {
                cursor.take()?;
                decoder.open_block();
            }
            Some("}") => {
                cursor.take()?;
                if !decoder.close_block() {
                    break;
                }
            }
            Some(".reg") => registers(cursor, &mut decoder)?,
            Some(".local" | ".shared") => {
                let space = cursor.take()?;
                let it = declared(cursor)?;
                cursor.expect(";")?;
                let variable = if space == ".local" {
                    decoder.local(it.size, it.alignment, cursor.line())?
                } else {
                    Variable::Shared { size: it.size, alignment: it.alignment }
                };
                decoder.variables.add(it.name, variable, cursor.line())?;
            }
            Some(".pragma") => {
                cursor.take()?;
                if !matches!(cursor.take()?, "\"nounroll\"") {
                    return Err(Refusal::new(cursor.line(), "a pragma"));
                }
                cursor.expect(";")?;
            }
            _ => {
                let written = label_or_statement(cursor, &mut decoder)?;
                if let Some(written) = written {
                    let at = (written.line as usize).saturating_sub(1);
                    let source = lines.get(at).copied().unwrap_or_default().trim();
                    decoder.decode(&written, source)?;
                }
            }
        }
    }
    decoder.finish(cursor.line())
}

fn label_or_statement(
    cursor: &mut Cursor<'_, '_>,
    decoder: &mut Decoder,
) -> Result<Option<super::text::Statement>, Refusal> {
    let is_label = cursor.peek_second() == Some(":") && cursor.peek_third() != Some(":");
    if !is_label {
        return statement(cursor).map(Some);
    }
    let name = cursor.take()?.to_owned();
    cursor.expect(":")?;
    decoder.label(name, cursor.line())?;
    Ok(None)
}

/// `.reg .b32 %r<12>;` or `.reg .b64 %SP, %SPL;`.
fn registers(cursor: &mut Cursor<'_, '_>, decoder: &mut Decoder) -> Result<(), Refusal> {
    cursor.expect(".reg")?;
    let kind = cursor.take()?;
    let known = kind.strip_prefix('.').filter(|word| !word.starts_with("bf")).and_then(Kind::of);
    let known = known.ok_or_else(|| Refusal::new(cursor.line(), format!("registers of type `{kind}`")))?;
    loop {
        let name = cursor.take()?.to_owned();
        let count = if cursor.accept("<") {
            let count = cursor.size()?;
            cursor.expect(">")?;
            Some(count)
        } else {
            None
        };
        decoder.registers(name, known, count, cursor.line())?;
        if cursor.accept(";") {
            return Ok(());
        }
        cursor.expect(",")?;
    }
}

impl Written {
    /// The name, if it is one.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            _ => None,
        }
    }
}
