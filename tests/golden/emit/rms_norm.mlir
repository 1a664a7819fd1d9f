"builtin.module"() ({
  "air.channel"() {sym_name = "l0_rms_norm_weight_l1_in", size = [1, 1], channel_type = "npu_dma_stream", broadcast_shape = [2, 4]} : () -> ()
  "air.channel"() {sym_name = "l0_rms_norm_x_l1_in", size = [2, 4], channel_type = "npu_dma_stream"} : () -> ()
  "air.channel"() {sym_name = "l0_rms_norm_y_l1_out", size = [2, 4], channel_type = "npu_dma_stream"} : () -> ()
  "func.func"() ({
  }) {function_type = (memref<64xbf16, 2 : i32>, memref<64xbf16, 2 : i32>, memref<64xbf16, 2 : i32>) -> (), sym_name = "rms_norm_row_7210eb9219", sym_visibility = "private", link_with = "rms_norm.rms_norm-7210eb9219.o", llvm.emit_c_interface} : () -> ()
  "func.func"() ({
  ^bb0(%arg0: memref<1024xbf16>, %arg1: memref<64xbf16>, %arg2: memref<1024xbf16>):
    "air.launch"(%arg0, %arg1, %arg2) ({
    ^bb0(%a3: memref<1024xbf16>, %a4: memref<64xbf16>, %a5: memref<1024xbf16>):
      %6 = "arith.constant"() {value = 0 : index} : () -> index
      %8 = "arith.constant"() {value = 512 : index} : () -> index
      %10 = "arith.constant"() {value = 1 : index} : () -> index
      %12 = "arith.constant"() {value = 64 : index} : () -> index
      %14 = "arith.constant"() {value = 2 : index} : () -> index
      %16 = "arith.constant"() {value = 128 : index} : () -> index
      %18 = "arith.constant"() {value = 3 : index} : () -> index
      %20 = "arith.constant"() {value = 192 : index} : () -> index
      %23 = "arith.constant"() {value = 256 : index} : () -> index
      %26 = "arith.constant"() {value = 320 : index} : () -> index
      %29 = "arith.constant"() {value = 384 : index} : () -> index
      %32 = "arith.constant"() {value = 448 : index} : () -> index
      "air.channel.put"(%6, %6, %a4) {chan_name = @l0_rms_norm_weight_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0>, static_src_sizes = array<i64: 64>, static_src_strides = array<i64: 1>} : (index, index, memref<64xbf16>) -> ()
      "scf.for"(%6, %14, %10) ({
      ^bb0(%i7: index):
        %9 = "arith.muli"(%i7, %8) : (index, index) -> index
        "air.channel.put"(%6, %6, %a3, %9) {chan_name = @l0_rms_norm_x_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: -9223372036854775808>, static_src_sizes = array<i64: 64>, static_src_strides = array<i64: 1>} : (index, index, memref<1024xbf16>, index) -> ()
        %11 = "arith.muli"(%i7, %8) : (index, index) -> index
        %13 = "arith.addi"(%11, %12) : (index, index) -> index
        "air.channel.put"(%6, %10, %a3, %13) {chan_name = @l0_rms_norm_x_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: -9223372036854775808>, static_src_sizes = array<i64: 64>, static_src_strides = array<i64: 1>} : (index, index, memref<1024xbf16>, index) -> ()
        %15 = "arith.muli"(%i7, %8) : (index, index) -> index
        %17 = "arith.addi"(%15, %16) : (index, index) -> index
        "air.channel.put"(%6, %14, %a3, %17) {chan_name = @l0_rms_norm_x_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: -9223372036854775808>, static_src_sizes = array<i64: 64>, static_src_strides = array<i64: 1>} : (index, index, memref<1024xbf16>, index) -> ()
        %19 = "arith.muli"(%i7, %8) : (index, index) -> index
        %21 = "arith.addi"(%19, %20) : (index, index) -> index
        "air.channel.put"(%6, %18, %a3, %21) {chan_name = @l0_rms_norm_x_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: -9223372036854775808>, static_src_sizes = array<i64: 64>, static_src_strides = array<i64: 1>} : (index, index, memref<1024xbf16>, index) -> ()
        %22 = "arith.muli"(%i7, %8) : (index, index) -> index
        %24 = "arith.addi"(%22, %23) : (index, index) -> index
        "air.channel.put"(%10, %6, %a3, %24) {chan_name = @l0_rms_norm_x_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: -9223372036854775808>, static_src_sizes = array<i64: 64>, static_src_strides = array<i64: 1>} : (index, index, memref<1024xbf16>, index) -> ()
        %25 = "arith.muli"(%i7, %8) : (index, index) -> index
        %27 = "arith.addi"(%25, %26) : (index, index) -> index
        "air.channel.put"(%10, %10, %a3, %27) {chan_name = @l0_rms_norm_x_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: -9223372036854775808>, static_src_sizes = array<i64: 64>, static_src_strides = array<i64: 1>} : (index, index, memref<1024xbf16>, index) -> ()
        %28 = "arith.muli"(%i7, %8) : (index, index) -> index
        %30 = "arith.addi"(%28, %29) : (index, index) -> index
        "air.channel.put"(%10, %14, %a3, %30) {chan_name = @l0_rms_norm_x_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: -9223372036854775808>, static_src_sizes = array<i64: 64>, static_src_strides = array<i64: 1>} : (index, index, memref<1024xbf16>, index) -> ()
        %31 = "arith.muli"(%i7, %8) : (index, index) -> index
        %33 = "arith.addi"(%31, %32) : (index, index) -> index
        "air.channel.put"(%10, %18, %a3, %33) {chan_name = @l0_rms_norm_x_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: -9223372036854775808>, static_src_sizes = array<i64: 64>, static_src_strides = array<i64: 1>} : (index, index, memref<1024xbf16>, index) -> ()
        "scf.yield"() : () -> ()
      }) : (index, index, index) -> ()
      "scf.for"(%6, %14, %10) ({
      ^bb0(%i34: index):
        %35 = "arith.muli"(%i34, %8) : (index, index) -> index
        "air.channel.get"(%6, %6, %a5, %35) {chan_name = @l0_rms_norm_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0>, static_dst_offsets = array<i64: -9223372036854775808>, static_dst_sizes = array<i64: 64>, static_dst_strides = array<i64: 1>} : (index, index, memref<1024xbf16>, index) -> ()
        %36 = "arith.muli"(%i34, %8) : (index, index) -> index
        %37 = "arith.addi"(%36, %12) : (index, index) -> index
        "air.channel.get"(%6, %10, %a5, %37) {chan_name = @l0_rms_norm_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0>, static_dst_offsets = array<i64: -9223372036854775808>, static_dst_sizes = array<i64: 64>, static_dst_strides = array<i64: 1>} : (index, index, memref<1024xbf16>, index) -> ()
        %38 = "arith.muli"(%i34, %8) : (index, index) -> index
        %39 = "arith.addi"(%38, %16) : (index, index) -> index
        "air.channel.get"(%6, %14, %a5, %39) {chan_name = @l0_rms_norm_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0>, static_dst_offsets = array<i64: -9223372036854775808>, static_dst_sizes = array<i64: 64>, static_dst_strides = array<i64: 1>} : (index, index, memref<1024xbf16>, index) -> ()
        %40 = "arith.muli"(%i34, %8) : (index, index) -> index
        %41 = "arith.addi"(%40, %20) : (index, index) -> index
        "air.channel.get"(%6, %18, %a5, %41) {chan_name = @l0_rms_norm_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0>, static_dst_offsets = array<i64: -9223372036854775808>, static_dst_sizes = array<i64: 64>, static_dst_strides = array<i64: 1>} : (index, index, memref<1024xbf16>, index) -> ()
        %42 = "arith.muli"(%i34, %8) : (index, index) -> index
        %43 = "arith.addi"(%42, %23) : (index, index) -> index
        "air.channel.get"(%10, %6, %a5, %43) {chan_name = @l0_rms_norm_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0>, static_dst_offsets = array<i64: -9223372036854775808>, static_dst_sizes = array<i64: 64>, static_dst_strides = array<i64: 1>} : (index, index, memref<1024xbf16>, index) -> ()
        %44 = "arith.muli"(%i34, %8) : (index, index) -> index
        %45 = "arith.addi"(%44, %26) : (index, index) -> index
        "air.channel.get"(%10, %10, %a5, %45) {chan_name = @l0_rms_norm_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0>, static_dst_offsets = array<i64: -9223372036854775808>, static_dst_sizes = array<i64: 64>, static_dst_strides = array<i64: 1>} : (index, index, memref<1024xbf16>, index) -> ()
        %46 = "arith.muli"(%i34, %8) : (index, index) -> index
        %47 = "arith.addi"(%46, %29) : (index, index) -> index
        "air.channel.get"(%10, %14, %a5, %47) {chan_name = @l0_rms_norm_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0>, static_dst_offsets = array<i64: -9223372036854775808>, static_dst_sizes = array<i64: 64>, static_dst_strides = array<i64: 1>} : (index, index, memref<1024xbf16>, index) -> ()
        %48 = "arith.muli"(%i34, %8) : (index, index) -> index
        %49 = "arith.addi"(%48, %32) : (index, index) -> index
        "air.channel.get"(%10, %18, %a5, %49) {chan_name = @l0_rms_norm_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0>, static_dst_offsets = array<i64: -9223372036854775808>, static_dst_sizes = array<i64: 64>, static_dst_strides = array<i64: 1>} : (index, index, memref<1024xbf16>, index) -> ()
        "scf.yield"() : () -> ()
      }) : (index, index, index) -> ()
      "air.segment"() ({
        %50 = "arith.constant"() {value = 2 : index} : () -> index
        %51 = "arith.constant"() {value = 4 : index} : () -> index
        "air.herd"(%50, %51) ({
        ^bb0(%x52: index, %y53: index, %sx54: index, %sy55: index):
          %60 = "arith.constant"() {value = 0 : index} : () -> index
          %61 = "arith.constant"() {value = 2 : index} : () -> index
          %62 = "arith.constant"() {value = 1 : index} : () -> index
          %56 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<64xbf16, 2 : i32>
          "air.channel.get"(%x52, %y53, %56) {chan_name = @l0_rms_norm_weight_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0>, static_dst_sizes = array<i64: 64>, static_dst_strides = array<i64: 1>} : (index, index, memref<64xbf16, 2 : i32>) -> ()
          "scf.for"(%60, %61, %62) ({
          ^bb0(%i57: index):
            %58 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<64xbf16, 2 : i32>
            %59 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<64xbf16, 2 : i32>
            "air.channel.get"(%x52, %y53, %58) {chan_name = @l0_rms_norm_x_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0>, static_dst_sizes = array<i64: 64>, static_dst_strides = array<i64: 1>} : (index, index, memref<64xbf16, 2 : i32>) -> ()
            "func.call"(%58, %56, %59) {callee = @rms_norm_row_7210eb9219} : (memref<64xbf16, 2 : i32>, memref<64xbf16, 2 : i32>, memref<64xbf16, 2 : i32>) -> ()
            "air.channel.put"(%x52, %y53, %59) {chan_name = @l0_rms_norm_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0>, static_src_sizes = array<i64: 64>, static_src_strides = array<i64: 1>} : (index, index, memref<64xbf16, 2 : i32>) -> ()
            "memref.dealloc"(%58) : (memref<64xbf16, 2 : i32>) -> ()
            "memref.dealloc"(%59) : (memref<64xbf16, 2 : i32>) -> ()
            "scf.yield"() : () -> ()
          }) : (index, index, index) -> ()
          "memref.dealloc"(%56) : (memref<64xbf16, 2 : i32>) -> ()
          "air.herd_terminator"() : () -> ()
        }) {sym_name = "l0_rms_norm_herd", operandSegmentSizes = array<i32: 0, 2, 0>, link_with = "rms_norm.rms_norm-7210eb9219.o"} : (index, index) -> ()
        "air.segment_terminator"() : () -> ()
      }) {sym_name = "l0_rms_norm_segment", operandSegmentSizes = array<i32: 0, 0, 0>, x_loc = 0 : i64, y_loc = 2 : i64, x_size = 2 : i64, y_size = 4 : i64} : () -> ()
      "air.launch_terminator"() : () -> ()
    }) {sym_name = "l0_rms_norm", operandSegmentSizes = array<i32: 0, 0, 3>} : (memref<1024xbf16>, memref<64xbf16>, memref<1024xbf16>) -> ()
    "func.return"() : () -> ()
  }) {function_type = (memref<1024xbf16>, memref<64xbf16>, memref<1024xbf16>) -> (), sym_name = "alone_rms_norm"} : () -> ()
}) : () -> ()
