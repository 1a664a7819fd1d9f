"builtin.module"() ({
  "air.channel"() {sym_name = "l0_decode_attention_position_l1_in", size = [1, 1], channel_type = "npu_dma_stream", broadcast_shape = [2, 2]} : () -> ()
  "air.channel"() {sym_name = "l0_decode_attention_q_l2_in", size = [2, 1], channel_type = "npu_dma_stream"} : () -> ()
  "air.channel"() {sym_name = "l0_decode_attention_stream_l1_in", size = [2, 2], channel_type = "npu_dma_stream"} : () -> ()
  "air.channel"() {sym_name = "l0_decode_attention_k_l2_in", size = [2, 1], channel_type = "npu_dma_stream"} : () -> ()
  "air.channel"() {sym_name = "l0_decode_attention_v_l2_in", size = [2, 1], channel_type = "npu_dma_stream"} : () -> ()
  "air.channel"() {sym_name = "l0_decode_attention_y_l1_out", size = [2, 2], channel_type = "npu_dma_stream"} : () -> ()
  "air.channel"() {sym_name = "l0_decode_attention_y_l2_out", size = [2, 1], channel_type = "npu_dma_stream"} : () -> ()
  "func.func"() ({
  }) {function_type = (memref<4096xbf16, 2 : i32>, memref<128xbf16, 2 : i32>, memref<128xf32, 2 : i32>, memref<48xf32, 2 : i32>) -> (), sym_name = "da_begin_c92847fd19", sym_visibility = "private", link_with = "decode_attention.decode_attention-c92847fd19.o", llvm.emit_c_interface} : () -> ()
  "func.func"() ({
  }) {function_type = (memref<128xbf16, 2 : i32>, memref<4096xbf16, 2 : i32>, memref<128xf32, 2 : i32>, memref<128xbf16, 2 : i32>, memref<48xf32, 2 : i32>, memref<16xi32, 2 : i32>, i32) -> (), sym_name = "da_scores_c92847fd19", sym_visibility = "private", link_with = "decode_attention.decode_attention-c92847fd19.o", llvm.emit_c_interface} : () -> ()
  "func.func"() ({
  }) {function_type = (memref<128xf32, 2 : i32>, memref<128xbf16, 2 : i32>, memref<4096xbf16, 2 : i32>, memref<48xf32, 2 : i32>, memref<16xi32, 2 : i32>, i32) -> (), sym_name = "da_accumulate_c92847fd19", sym_visibility = "private", link_with = "decode_attention.decode_attention-c92847fd19.o", llvm.emit_c_interface} : () -> ()
  "func.func"() ({
  }) {function_type = (memref<128xf32, 2 : i32>, memref<48xf32, 2 : i32>, memref<128xbf16, 2 : i32>) -> (), sym_name = "da_finish_c92847fd19", sym_visibility = "private", link_with = "decode_attention.decode_attention-c92847fd19.o", llvm.emit_c_interface} : () -> ()
  "func.func"() ({
  ^bb0(%arg0: memref<512xbf16>, %arg1: memref<49152xbf16>, %arg2: memref<49152xbf16>, %arg3: memref<16xi32>, %arg4: memref<512xbf16>):
    "air.launch"(%arg0, %arg1, %arg2, %arg3, %arg4) ({
    ^bb0(%a5: memref<512xbf16>, %a6: memref<49152xbf16>, %a7: memref<49152xbf16>, %a8: memref<16xi32>, %a9: memref<512xbf16>):
      %10 = "arith.constant"() {value = 0 : index} : () -> index
      %12 = "arith.constant"() {value = 512 : index} : () -> index
      %14 = "arith.constant"() {value = 1 : index} : () -> index
      %16 = "arith.constant"() {value = 256 : index} : () -> index
      %20 = "arith.constant"() {value = 16384 : index} : () -> index
      %27 = "arith.constant"() {value = 128 : index} : () -> index
      %29 = "arith.constant"() {value = 3 : index} : () -> index
      "air.channel.put"(%10, %10, %a8) {chan_name = @l0_decode_attention_position_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0>, static_src_sizes = array<i64: 16>, static_src_strides = array<i64: 1>} : (index, index, memref<16xi32>) -> ()
      "scf.for"(%10, %14, %14) ({
      ^bb0(%head11: index):
        %13 = "arith.muli"(%head11, %12) : (index, index) -> index
        "air.channel.put"(%10, %10, %a5, %13) {chan_name = @l0_decode_attention_q_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: -9223372036854775808>, static_src_sizes = array<i64: 256>, static_src_strides = array<i64: 1>} : (index, index, memref<512xbf16>, index) -> ()
        %15 = "arith.muli"(%head11, %12) : (index, index) -> index
        %17 = "arith.addi"(%15, %16) : (index, index) -> index
        "air.channel.put"(%14, %10, %a5, %17) {chan_name = @l0_decode_attention_q_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: -9223372036854775808>, static_src_sizes = array<i64: 256>, static_src_strides = array<i64: 1>} : (index, index, memref<512xbf16>, index) -> ()
        "scf.yield"() : () -> ()
      }) : (index, index, index) -> ()
      "scf.for"(%10, %14, %14) ({
      ^bb0(%head18: index):
        "scf.for"(%10, %29, %14) ({
        ^bb0(%block19: index):
          %21 = "arith.muli"(%block19, %20) : (index, index) -> index
          %22 = "arith.muli"(%head18, %16) : (index, index) -> index
          %23 = "arith.addi"(%21, %22) : (index, index) -> index
          "air.channel.put"(%10, %10, %a6, %23) {chan_name = @l0_decode_attention_k_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: 0, -9223372036854775808>, static_src_sizes = array<i64: 64, 128>, static_src_strides = array<i64: 256, 1>} : (index, index, memref<49152xbf16>, index) -> ()
          %24 = "arith.muli"(%block19, %20) : (index, index) -> index
          %25 = "arith.muli"(%head18, %16) : (index, index) -> index
          %26 = "arith.addi"(%24, %25) : (index, index) -> index
          %28 = "arith.addi"(%26, %27) : (index, index) -> index
          "air.channel.put"(%14, %10, %a6, %28) {chan_name = @l0_decode_attention_k_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: 0, -9223372036854775808>, static_src_sizes = array<i64: 64, 128>, static_src_strides = array<i64: 256, 1>} : (index, index, memref<49152xbf16>, index) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "scf.yield"() : () -> ()
      }) : (index, index, index) -> ()
      "scf.for"(%10, %14, %14) ({
      ^bb0(%head30: index):
        "scf.for"(%10, %29, %14) ({
        ^bb0(%block31: index):
          %32 = "arith.muli"(%block31, %20) : (index, index) -> index
          %33 = "arith.muli"(%head30, %16) : (index, index) -> index
          %34 = "arith.addi"(%32, %33) : (index, index) -> index
          "air.channel.put"(%10, %10, %a7, %34) {chan_name = @l0_decode_attention_v_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: 0, -9223372036854775808>, static_src_sizes = array<i64: 64, 128>, static_src_strides = array<i64: 256, 1>} : (index, index, memref<49152xbf16>, index) -> ()
          %35 = "arith.muli"(%block31, %20) : (index, index) -> index
          %36 = "arith.muli"(%head30, %16) : (index, index) -> index
          %37 = "arith.addi"(%35, %36) : (index, index) -> index
          %38 = "arith.addi"(%37, %27) : (index, index) -> index
          "air.channel.put"(%14, %10, %a7, %38) {chan_name = @l0_decode_attention_v_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: 0, -9223372036854775808>, static_src_sizes = array<i64: 64, 128>, static_src_strides = array<i64: 256, 1>} : (index, index, memref<49152xbf16>, index) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "scf.yield"() : () -> ()
      }) : (index, index, index) -> ()
      "scf.for"(%10, %14, %14) ({
      ^bb0(%head39: index):
        %40 = "arith.muli"(%head39, %12) : (index, index) -> index
        "air.channel.get"(%10, %10, %a9, %40) {chan_name = @l0_decode_attention_y_l2_out, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0>, static_dst_offsets = array<i64: -9223372036854775808>, static_dst_sizes = array<i64: 256>, static_dst_strides = array<i64: 1>} : (index, index, memref<512xbf16>, index) -> ()
        %41 = "arith.muli"(%head39, %12) : (index, index) -> index
        %42 = "arith.addi"(%41, %16) : (index, index) -> index
        "air.channel.get"(%14, %10, %a9, %42) {chan_name = @l0_decode_attention_y_l2_out, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0>, static_dst_offsets = array<i64: -9223372036854775808>, static_dst_sizes = array<i64: 256>, static_dst_strides = array<i64: 1>} : (index, index, memref<512xbf16>, index) -> ()
        "scf.yield"() : () -> ()
      }) : (index, index, index) -> ()
      "air.segment"() ({
        %45 = "arith.constant"() {value = 0 : index} : () -> index
        %46 = "arith.constant"() {value = 1 : index} : () -> index
        %50 = "arith.constant"() {value = 3 : index} : () -> index
        %60 = "arith.constant"() {value = 2 : index} : () -> index
        %43 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<256xbf16, 1 : i32>
        "scf.for"(%45, %46, %46) ({
        ^bb0(%head44: index):
          "air.channel.get"(%45, %45, %43) {chan_name = @l0_decode_attention_q_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0>, static_dst_sizes = array<i64: 256>, static_dst_strides = array<i64: 1>} : (index, index, memref<256xbf16, 1 : i32>) -> ()
          "air.channel.put"(%45, %45, %43) {chan_name = @l0_decode_attention_stream_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0>, static_src_sizes = array<i64: 128>, static_src_strides = array<i64: 1>} : (index, index, memref<256xbf16, 1 : i32>) -> ()
          "air.channel.put"(%45, %46, %43) {chan_name = @l0_decode_attention_stream_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 128>, static_src_sizes = array<i64: 128>, static_src_strides = array<i64: 1>} : (index, index, memref<256xbf16, 1 : i32>) -> ()
          "scf.for"(%45, %50, %46) ({
          ^bb0(%block47: index):
            %48 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<8192xbf16, 1 : i32>
            %49 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<8192xbf16, 1 : i32>
            "air.channel.get"(%45, %45, %48) {chan_name = @l0_decode_attention_k_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0, 0>, static_dst_sizes = array<i64: 64, 128>, static_dst_strides = array<i64: 128, 1>} : (index, index, memref<8192xbf16, 1 : i32>) -> ()
            "air.channel.get"(%45, %45, %49) {chan_name = @l0_decode_attention_v_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0, 0>, static_dst_sizes = array<i64: 64, 128>, static_dst_strides = array<i64: 128, 1>} : (index, index, memref<8192xbf16, 1 : i32>) -> ()
            "air.channel.put"(%45, %45, %48) {chan_name = @l0_decode_attention_stream_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0, 0>, static_src_sizes = array<i64: 64, 64>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<8192xbf16, 1 : i32>) -> ()
            "air.channel.put"(%45, %46, %48) {chan_name = @l0_decode_attention_stream_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0, 64>, static_src_sizes = array<i64: 64, 64>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<8192xbf16, 1 : i32>) -> ()
            "air.channel.put"(%45, %45, %49) {chan_name = @l0_decode_attention_stream_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0, 0>, static_src_sizes = array<i64: 64, 64>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<8192xbf16, 1 : i32>) -> ()
            "air.channel.put"(%45, %46, %49) {chan_name = @l0_decode_attention_stream_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0, 64>, static_src_sizes = array<i64: 64, 64>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<8192xbf16, 1 : i32>) -> ()
            "memref.dealloc"(%48) : (memref<8192xbf16, 1 : i32>) -> ()
            "memref.dealloc"(%49) : (memref<8192xbf16, 1 : i32>) -> ()
            "scf.yield"() : () -> ()
          }) : (index, index, index) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "memref.dealloc"(%43) : (memref<256xbf16, 1 : i32>) -> ()
        %51 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<256xbf16, 1 : i32>
        "scf.for"(%45, %46, %46) ({
        ^bb0(%head52: index):
          "air.channel.get"(%46, %45, %51) {chan_name = @l0_decode_attention_q_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0>, static_dst_sizes = array<i64: 256>, static_dst_strides = array<i64: 1>} : (index, index, memref<256xbf16, 1 : i32>) -> ()
          "air.channel.put"(%46, %45, %51) {chan_name = @l0_decode_attention_stream_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0>, static_src_sizes = array<i64: 128>, static_src_strides = array<i64: 1>} : (index, index, memref<256xbf16, 1 : i32>) -> ()
          "air.channel.put"(%46, %46, %51) {chan_name = @l0_decode_attention_stream_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 128>, static_src_sizes = array<i64: 128>, static_src_strides = array<i64: 1>} : (index, index, memref<256xbf16, 1 : i32>) -> ()
          "scf.for"(%45, %50, %46) ({
          ^bb0(%block53: index):
            %54 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<8192xbf16, 1 : i32>
            %55 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<8192xbf16, 1 : i32>
            "air.channel.get"(%46, %45, %54) {chan_name = @l0_decode_attention_k_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0, 0>, static_dst_sizes = array<i64: 64, 128>, static_dst_strides = array<i64: 128, 1>} : (index, index, memref<8192xbf16, 1 : i32>) -> ()
            "air.channel.get"(%46, %45, %55) {chan_name = @l0_decode_attention_v_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0, 0>, static_dst_sizes = array<i64: 64, 128>, static_dst_strides = array<i64: 128, 1>} : (index, index, memref<8192xbf16, 1 : i32>) -> ()
            "air.channel.put"(%46, %45, %54) {chan_name = @l0_decode_attention_stream_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0, 0>, static_src_sizes = array<i64: 64, 64>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<8192xbf16, 1 : i32>) -> ()
            "air.channel.put"(%46, %46, %54) {chan_name = @l0_decode_attention_stream_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0, 64>, static_src_sizes = array<i64: 64, 64>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<8192xbf16, 1 : i32>) -> ()
            "air.channel.put"(%46, %45, %55) {chan_name = @l0_decode_attention_stream_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0, 0>, static_src_sizes = array<i64: 64, 64>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<8192xbf16, 1 : i32>) -> ()
            "air.channel.put"(%46, %46, %55) {chan_name = @l0_decode_attention_stream_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0, 64>, static_src_sizes = array<i64: 64, 64>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<8192xbf16, 1 : i32>) -> ()
            "memref.dealloc"(%54) : (memref<8192xbf16, 1 : i32>) -> ()
            "memref.dealloc"(%55) : (memref<8192xbf16, 1 : i32>) -> ()
            "scf.yield"() : () -> ()
          }) : (index, index, index) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "memref.dealloc"(%51) : (memref<256xbf16, 1 : i32>) -> ()
        %56 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<256xbf16, 1 : i32>
        "scf.for"(%45, %46, %46) ({
        ^bb0(%head57: index):
          "air.channel.get"(%45, %45, %56) {chan_name = @l0_decode_attention_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0>, static_dst_sizes = array<i64: 128>, static_dst_strides = array<i64: 1>} : (index, index, memref<256xbf16, 1 : i32>) -> ()
          "air.channel.get"(%45, %46, %56) {chan_name = @l0_decode_attention_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 128>, static_dst_sizes = array<i64: 128>, static_dst_strides = array<i64: 1>} : (index, index, memref<256xbf16, 1 : i32>) -> ()
          "air.channel.put"(%45, %45, %56) {chan_name = @l0_decode_attention_y_l2_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0>, static_src_sizes = array<i64: 256>, static_src_strides = array<i64: 1>} : (index, index, memref<256xbf16, 1 : i32>) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "memref.dealloc"(%56) : (memref<256xbf16, 1 : i32>) -> ()
        %58 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<256xbf16, 1 : i32>
        "scf.for"(%45, %46, %46) ({
        ^bb0(%head59: index):
          "air.channel.get"(%46, %45, %58) {chan_name = @l0_decode_attention_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0>, static_dst_sizes = array<i64: 128>, static_dst_strides = array<i64: 1>} : (index, index, memref<256xbf16, 1 : i32>) -> ()
          "air.channel.get"(%46, %46, %58) {chan_name = @l0_decode_attention_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 128>, static_dst_sizes = array<i64: 128>, static_dst_strides = array<i64: 1>} : (index, index, memref<256xbf16, 1 : i32>) -> ()
          "air.channel.put"(%46, %45, %58) {chan_name = @l0_decode_attention_y_l2_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0>, static_src_sizes = array<i64: 256>, static_src_strides = array<i64: 1>} : (index, index, memref<256xbf16, 1 : i32>) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "memref.dealloc"(%58) : (memref<256xbf16, 1 : i32>) -> ()
        "air.herd"(%60, %60) ({
        ^bb0(%x61: index, %y62: index, %sx63: index, %sy64: index):
          %75 = "arith.constant"() {value = 64 : index} : () -> index
          %80 = "arith.constant"() {value = 0 : index} : () -> index
          %81 = "arith.constant"() {value = 3 : index} : () -> index
          %82 = "arith.constant"() {value = 1 : index} : () -> index
          %65 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<16xi32, 2 : i32>
          %66 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<128xf32, 2 : i32>
          %67 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<128xbf16, 2 : i32>
          %68 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<48xf32, 2 : i32>
          %69 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<128xbf16, 2 : i32>
          %70 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<128xf32, 2 : i32>
          %71 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<128xbf16, 2 : i32>
          "air.channel.get"(%x61, %y62, %65) {chan_name = @l0_decode_attention_position_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0>, static_dst_sizes = array<i64: 16>, static_dst_strides = array<i64: 1>} : (index, index, memref<16xi32, 2 : i32>) -> ()
          "scf.for"(%80, %82, %82) ({
          ^bb0(%head72: index):
            %73 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<4096xbf16, 2 : i32>
            "air.channel.get"(%x61, %y62, %73) {chan_name = @l0_decode_attention_stream_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0>, static_dst_sizes = array<i64: 128>, static_dst_strides = array<i64: 1>} : (index, index, memref<4096xbf16, 2 : i32>) -> ()
            "func.call"(%73, %67, %66, %68) {callee = @da_begin_c92847fd19} : (memref<4096xbf16, 2 : i32>, memref<128xbf16, 2 : i32>, memref<128xf32, 2 : i32>, memref<48xf32, 2 : i32>) -> ()
            "scf.for"(%80, %81, %82) ({
            ^bb0(%block74: index):
              "air.channel.get"(%x61, %y62, %73) {chan_name = @l0_decode_attention_stream_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0, 0>, static_dst_sizes = array<i64: 64, 64>, static_dst_strides = array<i64: 64, 1>} : (index, index, memref<4096xbf16, 2 : i32>) -> ()
              %76 = "arith.muli"(%block74, %75) : (index, index) -> index
              %77 = "arith.index_cast"(%76) : (index) -> i32
              "func.call"(%67, %73, %70, %69, %68, %65, %77) {callee = @da_scores_c92847fd19} : (memref<128xbf16, 2 : i32>, memref<4096xbf16, 2 : i32>, memref<128xf32, 2 : i32>, memref<128xbf16, 2 : i32>, memref<48xf32, 2 : i32>, memref<16xi32, 2 : i32>, i32) -> ()
              "air.channel.get"(%x61, %y62, %73) {chan_name = @l0_decode_attention_stream_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0, 0>, static_dst_sizes = array<i64: 64, 64>, static_dst_strides = array<i64: 64, 1>} : (index, index, memref<4096xbf16, 2 : i32>) -> ()
              %78 = "arith.muli"(%block74, %75) : (index, index) -> index
              %79 = "arith.index_cast"(%78) : (index) -> i32
              "func.call"(%66, %69, %73, %68, %65, %79) {callee = @da_accumulate_c92847fd19} : (memref<128xf32, 2 : i32>, memref<128xbf16, 2 : i32>, memref<4096xbf16, 2 : i32>, memref<48xf32, 2 : i32>, memref<16xi32, 2 : i32>, i32) -> ()
              "scf.yield"() : () -> ()
            }) : (index, index, index) -> ()
            "func.call"(%66, %68, %71) {callee = @da_finish_c92847fd19} : (memref<128xf32, 2 : i32>, memref<48xf32, 2 : i32>, memref<128xbf16, 2 : i32>) -> ()
            "air.channel.put"(%x61, %y62, %71) {chan_name = @l0_decode_attention_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0>, static_src_sizes = array<i64: 128>, static_src_strides = array<i64: 1>} : (index, index, memref<128xbf16, 2 : i32>) -> ()
            "memref.dealloc"(%73) : (memref<4096xbf16, 2 : i32>) -> ()
            "scf.yield"() : () -> ()
          }) : (index, index, index) -> ()
          "memref.dealloc"(%65) : (memref<16xi32, 2 : i32>) -> ()
          "memref.dealloc"(%66) : (memref<128xf32, 2 : i32>) -> ()
          "memref.dealloc"(%67) : (memref<128xbf16, 2 : i32>) -> ()
          "memref.dealloc"(%68) : (memref<48xf32, 2 : i32>) -> ()
          "memref.dealloc"(%69) : (memref<128xbf16, 2 : i32>) -> ()
          "memref.dealloc"(%70) : (memref<128xf32, 2 : i32>) -> ()
          "memref.dealloc"(%71) : (memref<128xbf16, 2 : i32>) -> ()
          "air.herd_terminator"() : () -> ()
        }) {sym_name = "l0_decode_attention_herd", operandSegmentSizes = array<i32: 0, 2, 0>, link_with = "decode_attention.decode_attention-c92847fd19.o"} : (index, index) -> ()
        "air.segment_terminator"() : () -> ()
      }) {sym_name = "l0_decode_attention_segment", operandSegmentSizes = array<i32: 0, 0, 0>, x_loc = 0 : i64, y_loc = 2 : i64, x_size = 2 : i64, y_size = 2 : i64} : () -> ()
      "air.launch_terminator"() : () -> ()
    }) {sym_name = "l0_decode_attention", operandSegmentSizes = array<i32: 0, 0, 5>} : (memref<512xbf16>, memref<49152xbf16>, memref<49152xbf16>, memref<16xi32>, memref<512xbf16>) -> ()
    "func.return"() : () -> ()
  }) {function_type = (memref<512xbf16>, memref<49152xbf16>, memref<49152xbf16>, memref<16xi32>, memref<512xbf16>) -> (), sym_name = "alone_decode"} : () -> ()
}) : () -> ()
