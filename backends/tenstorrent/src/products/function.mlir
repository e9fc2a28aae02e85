// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

  hal.executable.source private @__tensix_$name {
    hal.executable.export public @tensix_matmul_$name ordinal(0) layout(#layout)
        count(%device: !hal.device, %batch: index, %m: index, %n: index) -> (index, index, index) {
      %strips = affine.apply affine_map<()[s0] -> (s0 ceildiv 32)>()[%n]
      hal.return %strips, %m, %batch : index, index, index
    }
    builtin.module {
      // What runs where there is no matrix engine, or without it: 32 columns of a row for each workgroup.
      func.func @tensix_matmul_$name() {
        %zero = arith.constant $zero : $sum
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %w0 = hal.interface.constant.load layout(#layout) ordinal(0) : i32
        %w1 = hal.interface.constant.load layout(#layout) ordinal(1) : i32
        %w2 = hal.interface.constant.load layout(#layout) ordinal(2) : i32
        %w3 = hal.interface.constant.load layout(#layout) ordinal(3) : i32
        %batch = arith.index_castui %w0 : i32 to index
        %m = arith.index_castui %w1 : i32 to index
        %n = arith.index_castui %w2 : i32 to index
        %k = arith.index_castui %w3 : i32 to index
        %a = hal.interface.binding.subspan layout(#layout) binding(0) alignment(64) offset(%c0) flags(ReadOnly)
          : memref<?x?x?x$in>{%batch, %m, %k}
        %b = hal.interface.binding.subspan layout(#layout) binding(1) alignment(64) offset(%c0) flags(ReadOnly)
          : memref<?x?x?x$in>{%batch, %k, %n}
        %c = hal.interface.binding.subspan layout(#layout) binding(2) alignment(64) offset(%c0)
          : memref<?x?x?x$out>{%batch, %m, %n}
        %strip = hal.interface.workgroup.id[0] : index
        %row = hal.interface.workgroup.id[1] : index
        %matrix = hal.interface.workgroup.id[2] : index
        %first = affine.apply affine_map<()[s0] -> (s0 * 32)>()[%strip]
        %end = affine.min affine_map<()[s0, s1] -> (s0 * 32 + 32, s1)>()[%strip, %n]
        scf.for %column = %first to %end step %c1 {
          %sum = scf.for %i = %c0 to %k step %c1 iter_args(%before = %zero) -> ($sum) {
            %x = memref.load %a[%matrix, %row, %i] : memref<?x?x?x$in>
            %y = memref.load %b[%matrix, %i, %column] : memref<?x?x?x$in>$widen
            %product = $multiply $x, $y : $sum
            %after = $add %before, %product : $sum
            scf.yield %after : $sum
          }$narrow
          memref.store $value, %c[%matrix, %row, %column] : memref<?x?x?x$out>
        }
        return
      }
    }
  }
