"builtin.module"() ({
  "air.channel"() {sym_name = "l0_gemv_W_l2_in", size = [8, 1], channel_type = "npu_dma_stream"} : () -> ()
  "air.channel"() {sym_name = "l0_gemv_x_l1_in", size = [1, 1], channel_type = "npu_dma_stream", broadcast_shape = [8, 1]} : () -> ()
  "air.channel"() {sym_name = "l0_gemv_W_l1_in", size = [8, 1], channel_type = "npu_dma_stream"} : () -> ()
  "air.channel"() {sym_name = "l0_gemv_y_l1_out", size = [8, 1], channel_type = "npu_dma_stream"} : () -> ()
  "air.channel"() {sym_name = "l0_gemv_y_l2_out", size = [8, 1], channel_type = "npu_dma_stream"} : () -> ()
  "func.func"() ({
  }) {function_type = (memref<256xbf16, 2 : i32>, memref<128xbf16, 2 : i32>, memref<4xbf16, 2 : i32>, i32) -> (), sym_name = "gemv_rows_b154675a72_at2", sym_visibility = "private", link_with = "gemv.gemv-b154675a72.o", llvm.emit_c_interface} : () -> ()
  "func.func"() ({
  ^bb0(%arg0: memref<8192xbf16>, %arg1: memref<128xbf16>, %arg2: memref<64xbf16>):
    "air.launch"(%arg0, %arg1, %arg2) ({
    ^bb0(%a3: memref<8192xbf16>, %a4: memref<128xbf16>, %a5: memref<64xbf16>):
      %7 = "arith.constant"() {value = 0 : index} : () -> index
      %8 = "arith.constant"() {value = 4096 : index} : () -> index
      %10 = "arith.constant"() {value = 1 : index} : () -> index
      %12 = "arith.constant"() {value = 512 : index} : () -> index
      %14 = "arith.constant"() {value = 2 : index} : () -> index
      %16 = "arith.constant"() {value = 1024 : index} : () -> index
      %18 = "arith.constant"() {value = 3 : index} : () -> index
      %20 = "arith.constant"() {value = 1536 : index} : () -> index
      %22 = "arith.constant"() {value = 4 : index} : () -> index
      %24 = "arith.constant"() {value = 2048 : index} : () -> index
      %26 = "arith.constant"() {value = 5 : index} : () -> index
      %28 = "arith.constant"() {value = 2560 : index} : () -> index
      %30 = "arith.constant"() {value = 6 : index} : () -> index
      %32 = "arith.constant"() {value = 3072 : index} : () -> index
      %34 = "arith.constant"() {value = 7 : index} : () -> index
      %36 = "arith.constant"() {value = 3584 : index} : () -> index
      %41 = "arith.constant"() {value = 32 : index} : () -> index
      %46 = "arith.constant"() {value = 8 : index} : () -> index
      %49 = "arith.constant"() {value = 12 : index} : () -> index
      %52 = "arith.constant"() {value = 16 : index} : () -> index
      %55 = "arith.constant"() {value = 20 : index} : () -> index
      %58 = "arith.constant"() {value = 24 : index} : () -> index
      %61 = "arith.constant"() {value = 28 : index} : () -> index
      "scf.for"(%7, %14, %10) ({
      ^bb0(%i6: index):
        %9 = "arith.muli"(%i6, %8) : (index, index) -> index
        "air.channel.put"(%7, %7, %a3, %9) {chan_name = @l0_gemv_W_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: 0, -9223372036854775808>, static_src_sizes = array<i64: 4, 128>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<8192xbf16>, index) -> ()
        %11 = "arith.muli"(%i6, %8) : (index, index) -> index
        %13 = "arith.addi"(%11, %12) : (index, index) -> index
        "air.channel.put"(%10, %7, %a3, %13) {chan_name = @l0_gemv_W_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: 0, -9223372036854775808>, static_src_sizes = array<i64: 4, 128>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<8192xbf16>, index) -> ()
        %15 = "arith.muli"(%i6, %8) : (index, index) -> index
        %17 = "arith.addi"(%15, %16) : (index, index) -> index
        "air.channel.put"(%14, %7, %a3, %17) {chan_name = @l0_gemv_W_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: 0, -9223372036854775808>, static_src_sizes = array<i64: 4, 128>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<8192xbf16>, index) -> ()
        %19 = "arith.muli"(%i6, %8) : (index, index) -> index
        %21 = "arith.addi"(%19, %20) : (index, index) -> index
        "air.channel.put"(%18, %7, %a3, %21) {chan_name = @l0_gemv_W_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: 0, -9223372036854775808>, static_src_sizes = array<i64: 4, 128>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<8192xbf16>, index) -> ()
        %23 = "arith.muli"(%i6, %8) : (index, index) -> index
        %25 = "arith.addi"(%23, %24) : (index, index) -> index
        "air.channel.put"(%22, %7, %a3, %25) {chan_name = @l0_gemv_W_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: 0, -9223372036854775808>, static_src_sizes = array<i64: 4, 128>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<8192xbf16>, index) -> ()
        %27 = "arith.muli"(%i6, %8) : (index, index) -> index
        %29 = "arith.addi"(%27, %28) : (index, index) -> index
        "air.channel.put"(%26, %7, %a3, %29) {chan_name = @l0_gemv_W_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: 0, -9223372036854775808>, static_src_sizes = array<i64: 4, 128>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<8192xbf16>, index) -> ()
        %31 = "arith.muli"(%i6, %8) : (index, index) -> index
        %33 = "arith.addi"(%31, %32) : (index, index) -> index
        "air.channel.put"(%30, %7, %a3, %33) {chan_name = @l0_gemv_W_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: 0, -9223372036854775808>, static_src_sizes = array<i64: 4, 128>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<8192xbf16>, index) -> ()
        %35 = "arith.muli"(%i6, %8) : (index, index) -> index
        %37 = "arith.addi"(%35, %36) : (index, index) -> index
        "air.channel.put"(%34, %7, %a3, %37) {chan_name = @l0_gemv_W_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: 0, -9223372036854775808>, static_src_sizes = array<i64: 4, 128>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<8192xbf16>, index) -> ()
        "scf.yield"() : () -> ()
      }) : (index, index, index) -> ()
      "scf.for"(%7, %14, %10) ({
      ^bb0(%i38: index):
        "scf.for"(%7, %14, %10) ({
        ^bb0(%j39: index):
          "air.channel.put"(%7, %7, %a4) {chan_name = @l0_gemv_x_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0>, static_src_sizes = array<i64: 128>, static_src_strides = array<i64: 1>} : (index, index, memref<128xbf16>) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "scf.yield"() : () -> ()
      }) : (index, index, index) -> ()
      "scf.for"(%7, %14, %10) ({
      ^bb0(%i40: index):
        %42 = "arith.muli"(%i40, %41) : (index, index) -> index
        "air.channel.get"(%7, %7, %a5, %42) {chan_name = @l0_gemv_y_l2_out, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0>, static_dst_offsets = array<i64: -9223372036854775808>, static_dst_sizes = array<i64: 4>, static_dst_strides = array<i64: 1>} : (index, index, memref<64xbf16>, index) -> ()
        %43 = "arith.muli"(%i40, %41) : (index, index) -> index
        %44 = "arith.addi"(%43, %22) : (index, index) -> index
        "air.channel.get"(%10, %7, %a5, %44) {chan_name = @l0_gemv_y_l2_out, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0>, static_dst_offsets = array<i64: -9223372036854775808>, static_dst_sizes = array<i64: 4>, static_dst_strides = array<i64: 1>} : (index, index, memref<64xbf16>, index) -> ()
        %45 = "arith.muli"(%i40, %41) : (index, index) -> index
        %47 = "arith.addi"(%45, %46) : (index, index) -> index
        "air.channel.get"(%14, %7, %a5, %47) {chan_name = @l0_gemv_y_l2_out, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0>, static_dst_offsets = array<i64: -9223372036854775808>, static_dst_sizes = array<i64: 4>, static_dst_strides = array<i64: 1>} : (index, index, memref<64xbf16>, index) -> ()
        %48 = "arith.muli"(%i40, %41) : (index, index) -> index
        %50 = "arith.addi"(%48, %49) : (index, index) -> index
        "air.channel.get"(%18, %7, %a5, %50) {chan_name = @l0_gemv_y_l2_out, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0>, static_dst_offsets = array<i64: -9223372036854775808>, static_dst_sizes = array<i64: 4>, static_dst_strides = array<i64: 1>} : (index, index, memref<64xbf16>, index) -> ()
        %51 = "arith.muli"(%i40, %41) : (index, index) -> index
        %53 = "arith.addi"(%51, %52) : (index, index) -> index
        "air.channel.get"(%22, %7, %a5, %53) {chan_name = @l0_gemv_y_l2_out, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0>, static_dst_offsets = array<i64: -9223372036854775808>, static_dst_sizes = array<i64: 4>, static_dst_strides = array<i64: 1>} : (index, index, memref<64xbf16>, index) -> ()
        %54 = "arith.muli"(%i40, %41) : (index, index) -> index
        %56 = "arith.addi"(%54, %55) : (index, index) -> index
        "air.channel.get"(%26, %7, %a5, %56) {chan_name = @l0_gemv_y_l2_out, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0>, static_dst_offsets = array<i64: -9223372036854775808>, static_dst_sizes = array<i64: 4>, static_dst_strides = array<i64: 1>} : (index, index, memref<64xbf16>, index) -> ()
        %57 = "arith.muli"(%i40, %41) : (index, index) -> index
        %59 = "arith.addi"(%57, %58) : (index, index) -> index
        "air.channel.get"(%30, %7, %a5, %59) {chan_name = @l0_gemv_y_l2_out, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0>, static_dst_offsets = array<i64: -9223372036854775808>, static_dst_sizes = array<i64: 4>, static_dst_strides = array<i64: 1>} : (index, index, memref<64xbf16>, index) -> ()
        %60 = "arith.muli"(%i40, %41) : (index, index) -> index
        %62 = "arith.addi"(%60, %61) : (index, index) -> index
        "air.channel.get"(%34, %7, %a5, %62) {chan_name = @l0_gemv_y_l2_out, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0>, static_dst_offsets = array<i64: -9223372036854775808>, static_dst_sizes = array<i64: 4>, static_dst_strides = array<i64: 1>} : (index, index, memref<64xbf16>, index) -> ()
        "scf.yield"() : () -> ()
      }) : (index, index, index) -> ()
      "air.segment"() ({
        %65 = "arith.constant"() {value = 0 : index} : () -> index
        %67 = "arith.constant"() {value = 256 : index} : () -> index
        %69 = "arith.constant"() {value = 2 : index} : () -> index
        %70 = "arith.constant"() {value = 1 : index} : () -> index
        %81 = "arith.constant"() {value = 3 : index} : () -> index
        %86 = "arith.constant"() {value = 4 : index} : () -> index
        %91 = "arith.constant"() {value = 5 : index} : () -> index
        %96 = "arith.constant"() {value = 6 : index} : () -> index
        %101 = "arith.constant"() {value = 7 : index} : () -> index
        %120 = "arith.constant"() {value = 8 : index} : () -> index
        %63 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<512xbf16, 1 : i32>
        "scf.for"(%65, %69, %70) ({
        ^bb0(%i64: index):
          "air.channel.get"(%65, %65, %63) {chan_name = @l0_gemv_W_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0, 0>, static_dst_sizes = array<i64: 4, 128>, static_dst_strides = array<i64: 128, 1>} : (index, index, memref<512xbf16, 1 : i32>) -> ()
          "scf.for"(%65, %69, %70) ({
          ^bb0(%j66: index):
            %68 = "arith.muli"(%j66, %67) : (index, index) -> index
            "air.channel.put"(%65, %65, %63, %68) {chan_name = @l0_gemv_W_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: 0, -9223372036854775808>, static_src_sizes = array<i64: 2, 128>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<512xbf16, 1 : i32>, index) -> ()
            "scf.yield"() : () -> ()
          }) : (index, index, index) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "memref.dealloc"(%63) : (memref<512xbf16, 1 : i32>) -> ()
        %71 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<512xbf16, 1 : i32>
        "scf.for"(%65, %69, %70) ({
        ^bb0(%i72: index):
          "air.channel.get"(%70, %65, %71) {chan_name = @l0_gemv_W_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0, 0>, static_dst_sizes = array<i64: 4, 128>, static_dst_strides = array<i64: 128, 1>} : (index, index, memref<512xbf16, 1 : i32>) -> ()
          "scf.for"(%65, %69, %70) ({
          ^bb0(%j73: index):
            %74 = "arith.muli"(%j73, %67) : (index, index) -> index
            "air.channel.put"(%70, %65, %71, %74) {chan_name = @l0_gemv_W_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: 0, -9223372036854775808>, static_src_sizes = array<i64: 2, 128>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<512xbf16, 1 : i32>, index) -> ()
            "scf.yield"() : () -> ()
          }) : (index, index, index) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "memref.dealloc"(%71) : (memref<512xbf16, 1 : i32>) -> ()
        %75 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<512xbf16, 1 : i32>
        "scf.for"(%65, %69, %70) ({
        ^bb0(%i76: index):
          "air.channel.get"(%69, %65, %75) {chan_name = @l0_gemv_W_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0, 0>, static_dst_sizes = array<i64: 4, 128>, static_dst_strides = array<i64: 128, 1>} : (index, index, memref<512xbf16, 1 : i32>) -> ()
          "scf.for"(%65, %69, %70) ({
          ^bb0(%j77: index):
            %78 = "arith.muli"(%j77, %67) : (index, index) -> index
            "air.channel.put"(%69, %65, %75, %78) {chan_name = @l0_gemv_W_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: 0, -9223372036854775808>, static_src_sizes = array<i64: 2, 128>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<512xbf16, 1 : i32>, index) -> ()
            "scf.yield"() : () -> ()
          }) : (index, index, index) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "memref.dealloc"(%75) : (memref<512xbf16, 1 : i32>) -> ()
        %79 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<512xbf16, 1 : i32>
        "scf.for"(%65, %69, %70) ({
        ^bb0(%i80: index):
          "air.channel.get"(%81, %65, %79) {chan_name = @l0_gemv_W_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0, 0>, static_dst_sizes = array<i64: 4, 128>, static_dst_strides = array<i64: 128, 1>} : (index, index, memref<512xbf16, 1 : i32>) -> ()
          "scf.for"(%65, %69, %70) ({
          ^bb0(%j82: index):
            %83 = "arith.muli"(%j82, %67) : (index, index) -> index
            "air.channel.put"(%81, %65, %79, %83) {chan_name = @l0_gemv_W_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: 0, -9223372036854775808>, static_src_sizes = array<i64: 2, 128>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<512xbf16, 1 : i32>, index) -> ()
            "scf.yield"() : () -> ()
          }) : (index, index, index) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "memref.dealloc"(%79) : (memref<512xbf16, 1 : i32>) -> ()
        %84 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<512xbf16, 1 : i32>
        "scf.for"(%65, %69, %70) ({
        ^bb0(%i85: index):
          "air.channel.get"(%86, %65, %84) {chan_name = @l0_gemv_W_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0, 0>, static_dst_sizes = array<i64: 4, 128>, static_dst_strides = array<i64: 128, 1>} : (index, index, memref<512xbf16, 1 : i32>) -> ()
          "scf.for"(%65, %69, %70) ({
          ^bb0(%j87: index):
            %88 = "arith.muli"(%j87, %67) : (index, index) -> index
            "air.channel.put"(%86, %65, %84, %88) {chan_name = @l0_gemv_W_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: 0, -9223372036854775808>, static_src_sizes = array<i64: 2, 128>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<512xbf16, 1 : i32>, index) -> ()
            "scf.yield"() : () -> ()
          }) : (index, index, index) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "memref.dealloc"(%84) : (memref<512xbf16, 1 : i32>) -> ()
        %89 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<512xbf16, 1 : i32>
        "scf.for"(%65, %69, %70) ({
        ^bb0(%i90: index):
          "air.channel.get"(%91, %65, %89) {chan_name = @l0_gemv_W_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0, 0>, static_dst_sizes = array<i64: 4, 128>, static_dst_strides = array<i64: 128, 1>} : (index, index, memref<512xbf16, 1 : i32>) -> ()
          "scf.for"(%65, %69, %70) ({
          ^bb0(%j92: index):
            %93 = "arith.muli"(%j92, %67) : (index, index) -> index
            "air.channel.put"(%91, %65, %89, %93) {chan_name = @l0_gemv_W_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: 0, -9223372036854775808>, static_src_sizes = array<i64: 2, 128>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<512xbf16, 1 : i32>, index) -> ()
            "scf.yield"() : () -> ()
          }) : (index, index, index) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "memref.dealloc"(%89) : (memref<512xbf16, 1 : i32>) -> ()
        %94 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<512xbf16, 1 : i32>
        "scf.for"(%65, %69, %70) ({
        ^bb0(%i95: index):
          "air.channel.get"(%96, %65, %94) {chan_name = @l0_gemv_W_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0, 0>, static_dst_sizes = array<i64: 4, 128>, static_dst_strides = array<i64: 128, 1>} : (index, index, memref<512xbf16, 1 : i32>) -> ()
          "scf.for"(%65, %69, %70) ({
          ^bb0(%j97: index):
            %98 = "arith.muli"(%j97, %67) : (index, index) -> index
            "air.channel.put"(%96, %65, %94, %98) {chan_name = @l0_gemv_W_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: 0, -9223372036854775808>, static_src_sizes = array<i64: 2, 128>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<512xbf16, 1 : i32>, index) -> ()
            "scf.yield"() : () -> ()
          }) : (index, index, index) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "memref.dealloc"(%94) : (memref<512xbf16, 1 : i32>) -> ()
        %99 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<512xbf16, 1 : i32>
        "scf.for"(%65, %69, %70) ({
        ^bb0(%i100: index):
          "air.channel.get"(%101, %65, %99) {chan_name = @l0_gemv_W_l2_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0, 0>, static_dst_sizes = array<i64: 4, 128>, static_dst_strides = array<i64: 128, 1>} : (index, index, memref<512xbf16, 1 : i32>) -> ()
          "scf.for"(%65, %69, %70) ({
          ^bb0(%j102: index):
            %103 = "arith.muli"(%j102, %67) : (index, index) -> index
            "air.channel.put"(%101, %65, %99, %103) {chan_name = @l0_gemv_W_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 1, 0, 0, 0>, static_src_offsets = array<i64: 0, -9223372036854775808>, static_src_sizes = array<i64: 2, 128>, static_src_strides = array<i64: 128, 1>} : (index, index, memref<512xbf16, 1 : i32>, index) -> ()
            "scf.yield"() : () -> ()
          }) : (index, index, index) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "memref.dealloc"(%99) : (memref<512xbf16, 1 : i32>) -> ()
        %104 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<4xbf16, 1 : i32>
        "scf.for"(%65, %69, %70) ({
        ^bb0(%i105: index):
          "air.channel.get"(%65, %65, %104) {chan_name = @l0_gemv_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0>, static_dst_sizes = array<i64: 4>, static_dst_strides = array<i64: 1>} : (index, index, memref<4xbf16, 1 : i32>) -> ()
          "air.channel.put"(%65, %65, %104) {chan_name = @l0_gemv_y_l2_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0>, static_src_sizes = array<i64: 4>, static_src_strides = array<i64: 1>} : (index, index, memref<4xbf16, 1 : i32>) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "memref.dealloc"(%104) : (memref<4xbf16, 1 : i32>) -> ()
        %106 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<4xbf16, 1 : i32>
        "scf.for"(%65, %69, %70) ({
        ^bb0(%i107: index):
          "air.channel.get"(%70, %65, %106) {chan_name = @l0_gemv_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0>, static_dst_sizes = array<i64: 4>, static_dst_strides = array<i64: 1>} : (index, index, memref<4xbf16, 1 : i32>) -> ()
          "air.channel.put"(%70, %65, %106) {chan_name = @l0_gemv_y_l2_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0>, static_src_sizes = array<i64: 4>, static_src_strides = array<i64: 1>} : (index, index, memref<4xbf16, 1 : i32>) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "memref.dealloc"(%106) : (memref<4xbf16, 1 : i32>) -> ()
        %108 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<4xbf16, 1 : i32>
        "scf.for"(%65, %69, %70) ({
        ^bb0(%i109: index):
          "air.channel.get"(%69, %65, %108) {chan_name = @l0_gemv_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0>, static_dst_sizes = array<i64: 4>, static_dst_strides = array<i64: 1>} : (index, index, memref<4xbf16, 1 : i32>) -> ()
          "air.channel.put"(%69, %65, %108) {chan_name = @l0_gemv_y_l2_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0>, static_src_sizes = array<i64: 4>, static_src_strides = array<i64: 1>} : (index, index, memref<4xbf16, 1 : i32>) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "memref.dealloc"(%108) : (memref<4xbf16, 1 : i32>) -> ()
        %110 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<4xbf16, 1 : i32>
        "scf.for"(%65, %69, %70) ({
        ^bb0(%i111: index):
          "air.channel.get"(%81, %65, %110) {chan_name = @l0_gemv_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0>, static_dst_sizes = array<i64: 4>, static_dst_strides = array<i64: 1>} : (index, index, memref<4xbf16, 1 : i32>) -> ()
          "air.channel.put"(%81, %65, %110) {chan_name = @l0_gemv_y_l2_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0>, static_src_sizes = array<i64: 4>, static_src_strides = array<i64: 1>} : (index, index, memref<4xbf16, 1 : i32>) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "memref.dealloc"(%110) : (memref<4xbf16, 1 : i32>) -> ()
        %112 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<4xbf16, 1 : i32>
        "scf.for"(%65, %69, %70) ({
        ^bb0(%i113: index):
          "air.channel.get"(%86, %65, %112) {chan_name = @l0_gemv_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0>, static_dst_sizes = array<i64: 4>, static_dst_strides = array<i64: 1>} : (index, index, memref<4xbf16, 1 : i32>) -> ()
          "air.channel.put"(%86, %65, %112) {chan_name = @l0_gemv_y_l2_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0>, static_src_sizes = array<i64: 4>, static_src_strides = array<i64: 1>} : (index, index, memref<4xbf16, 1 : i32>) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "memref.dealloc"(%112) : (memref<4xbf16, 1 : i32>) -> ()
        %114 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<4xbf16, 1 : i32>
        "scf.for"(%65, %69, %70) ({
        ^bb0(%i115: index):
          "air.channel.get"(%91, %65, %114) {chan_name = @l0_gemv_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0>, static_dst_sizes = array<i64: 4>, static_dst_strides = array<i64: 1>} : (index, index, memref<4xbf16, 1 : i32>) -> ()
          "air.channel.put"(%91, %65, %114) {chan_name = @l0_gemv_y_l2_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0>, static_src_sizes = array<i64: 4>, static_src_strides = array<i64: 1>} : (index, index, memref<4xbf16, 1 : i32>) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "memref.dealloc"(%114) : (memref<4xbf16, 1 : i32>) -> ()
        %116 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<4xbf16, 1 : i32>
        "scf.for"(%65, %69, %70) ({
        ^bb0(%i117: index):
          "air.channel.get"(%96, %65, %116) {chan_name = @l0_gemv_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0>, static_dst_sizes = array<i64: 4>, static_dst_strides = array<i64: 1>} : (index, index, memref<4xbf16, 1 : i32>) -> ()
          "air.channel.put"(%96, %65, %116) {chan_name = @l0_gemv_y_l2_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0>, static_src_sizes = array<i64: 4>, static_src_strides = array<i64: 1>} : (index, index, memref<4xbf16, 1 : i32>) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "memref.dealloc"(%116) : (memref<4xbf16, 1 : i32>) -> ()
        %118 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<4xbf16, 1 : i32>
        "scf.for"(%65, %69, %70) ({
        ^bb0(%i119: index):
          "air.channel.get"(%101, %65, %118) {chan_name = @l0_gemv_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0>, static_dst_sizes = array<i64: 4>, static_dst_strides = array<i64: 1>} : (index, index, memref<4xbf16, 1 : i32>) -> ()
          "air.channel.put"(%101, %65, %118) {chan_name = @l0_gemv_y_l2_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0>, static_src_sizes = array<i64: 4>, static_src_strides = array<i64: 1>} : (index, index, memref<4xbf16, 1 : i32>) -> ()
          "scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "memref.dealloc"(%118) : (memref<4xbf16, 1 : i32>) -> ()
        "air.herd"(%120, %70) ({
        ^bb0(%x121: index, %y122: index, %sx123: index, %sy124: index):
          %130 = "arith.constant"() {value = 0 : index} : () -> index
          %131 = "arith.constant"() {value = 2 : index} : () -> index
          %134 = "arith.constant"() {value = 1 : index} : () -> index
          %125 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<128xbf16, 2 : i32>
          %126 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<256xbf16, 2 : i32>
          %127 = "memref.alloc"() {operandSegmentSizes = array<i32: 0, 0>} : () -> memref<4xbf16, 2 : i32>
          "scf.for"(%130, %131, %134) ({
          ^bb0(%i128: index):
            "scf.for"(%130, %131, %134) ({
            ^bb0(%j129: index):
              "air.channel.get"(%x121, %130, %125) {chan_name = @l0_gemv_x_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0>, static_dst_sizes = array<i64: 128>, static_dst_strides = array<i64: 1>} : (index, index, memref<128xbf16, 2 : i32>) -> ()
              "air.channel.get"(%x121, %130, %126) {chan_name = @l0_gemv_W_l1_in, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, static_dst_offsets = array<i64: 0, 0>, static_dst_sizes = array<i64: 2, 128>, static_dst_strides = array<i64: 128, 1>} : (index, index, memref<256xbf16, 2 : i32>) -> ()
              %132 = "arith.muli"(%j129, %131) : (index, index) -> index
              %133 = "arith.index_cast"(%132) : (index) -> i32
              "func.call"(%126, %125, %127, %133) {callee = @gemv_rows_b154675a72_at2} : (memref<256xbf16, 2 : i32>, memref<128xbf16, 2 : i32>, memref<4xbf16, 2 : i32>, i32) -> ()
              "scf.yield"() : () -> ()
            }) : (index, index, index) -> ()
            "air.channel.put"(%x121, %130, %127) {chan_name = @l0_gemv_y_l1_out, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0, 0>, static_src_offsets = array<i64: 0>, static_src_sizes = array<i64: 4>, static_src_strides = array<i64: 1>} : (index, index, memref<4xbf16, 2 : i32>) -> ()
            "scf.yield"() : () -> ()
          }) : (index, index, index) -> ()
          "memref.dealloc"(%125) : (memref<128xbf16, 2 : i32>) -> ()
          "memref.dealloc"(%126) : (memref<256xbf16, 2 : i32>) -> ()
          "memref.dealloc"(%127) : (memref<4xbf16, 2 : i32>) -> ()
          "air.herd_terminator"() : () -> ()
        }) {sym_name = "l0_gemv_herd", operandSegmentSizes = array<i32: 0, 2, 0>, link_with = "gemv.gemv-b154675a72.o"} : (index, index) -> ()
        "air.segment_terminator"() : () -> ()
      }) {sym_name = "l0_gemv_segment", operandSegmentSizes = array<i32: 0, 0, 0>, x_loc = 0 : i64, y_loc = 2 : i64, x_size = 8 : i64, y_size = 1 : i64} : () -> ()
      "air.launch_terminator"() : () -> ()
    }) {sym_name = "l0_gemv", operandSegmentSizes = array<i32: 0, 0, 3>} : (memref<8192xbf16>, memref<128xbf16>, memref<64xbf16>) -> ()
    "func.return"() : () -> ()
  }) {function_type = (memref<8192xbf16>, memref<128xbf16>, memref<64xbf16>) -> (), sym_name = "alone_gemv"} : () -> ()
}) : () -> ()
