// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

  util.func private @__tensix_$operation_$name(
      %a: tensor<$shapex$in>, %b: tensor<$shapex$in>, %init: tensor<$shapex$out>) -> tensor<$shapex$out> {
    $batch
    %dim_m = arith.constant $m : index
    %dim_k = arith.constant $k : index
    %m = tensor.dim %a, %dim_m : tensor<$shapex$in>
    %k = tensor.dim %a, %dim_k : tensor<$shapex$in>
    %n = tensor.dim %b, %dim_k : tensor<$shapex$in>
    %w0 = arith.index_cast %batch : index to i32
    %w1 = arith.index_cast %m : index to i32
    %w2 = arith.index_cast %n : index to i32
    %w3 = arith.index_cast %k : index to i32
    %c = flow.dispatch @__tensix_$name::@tensix_matmul_$name[%batch, %m, %n](%w0, %w1, %w2, %w3, %a, %b)
      : (i32, i32, i32, i32, tensor<$shapex$in>{$outer%m, %k}, tensor<$shapex$in>{$outer%k, %n})
      -> tensor<$shapex$out>{$outer%m, %n}
    util.return %c : tensor<$shapex$out>
  }
  transform.named_sequence @is_$operation_$name(%root: !transform.any_op {transform.readonly})
      -> (!transform.any_value, !transform.any_value) {
    %operands, %results = transform.iree.match.cast_compatible_dag_from_root %root {
    ^bb0(%a: tensor<$shapex$in>, %b: tensor<$shapex$in>, %init: tensor<$shapex$out>):
      %zero = arith.constant $zero : $out
      %zeros = linalg.fill ins(%zero : $out) outs(%init : tensor<$shapex$out>) -> tensor<$shapex$out>
      %c = linalg.$operation ins(%a, %b : tensor<$shapex$in>, tensor<$shapex$in>)
        outs(%zeros : tensor<$shapex$out>) -> tensor<$shapex$out>
    } : (!transform.any_op) -> (!transform.any_value, !transform.any_value)
    transform.yield %operands, %results : !transform.any_value, !transform.any_value
  }
  transform.named_sequence @call_$operation_$name(
      %operands: !transform.any_value {transform.readonly}, %result: !transform.any_value {transform.readonly}) {
    %root = transform.get_defining_op %result : (!transform.any_value) -> !transform.any_op
    %module = transform.util.get_nearest_symbol_table %root : (!transform.any_op) -> !transform.any_op
    transform.util.import_symbol @__tensix_$name into %module if undefined : (!transform.any_op) -> !transform.any_op
    %function = transform.util.import_symbol @__tensix_$operation_$name into %module if undefined
      : (!transform.any_op) -> !transform.any_op
    transform.util.cast_and_call %function(%operands) -> %result after %root {
      transform.type_conversion.tensor.cast_shape_dynamic_dims
    } : (!transform.any_op, !transform.any_value, !transform.any_value, !transform.any_op) -> !transform.any_op
    transform.yield
  }
